"""Leave of a long log what cards are worth being held against: its ends, and what stands around each kind of trouble. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from holdfast.diagnosis.logs.text import TROUBLE, Line

SHORT = 400  # lines; a log up to this length is left as it is
HEAD, TAIL = 60, 200
BEFORE, AFTER = 3, 6  # lines kept around trouble
FIRST, LAST = 700, 300  # of what is kept beside the ends, when that is too much
_DIGITS = re.compile(r"0x[0-9a-f]+|\d+")


def sift(lines: Sequence[Line]) -> list[Line]:
    """Select the lines worth matching, in order; trouble that repeats with other numbers is kept once."""
    if len(lines) <= SHORT:
        return list(lines)
    kept: dict[int, None] = {}
    shapes: set[str] = set()
    for at, line in enumerate(lines[HEAD:-TAIL], HEAD):
        if not any(word in line.text for word in TROUBLE):
            continue
        shape = _DIGITS.sub("0", line.text)
        if shape not in shapes:
            shapes.add(shape)
            kept |= dict.fromkeys(range(max(HEAD, at - BEFORE), min(len(lines) - TAIL, at + AFTER)))
    middle = sorted(kept)
    if len(middle) > FIRST + LAST:
        middle = middle[:FIRST] + middle[-LAST:]
    return [*lines[:HEAD], *(lines[at] for at in middle), *lines[-TAIL:]]
