"""Whether names of modules may be held against a regular expression that a config or an adapter brings: such a search has to end."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from typing import Any

parser: Any = import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
LONGEST = 4000  # characters
MOST_REPEATS = 4  # of any length, one after another: the fourth power of a name's length at worst
MOST_CHOICES = 16  # optional parts and alternatives, one after another
_REPEATS = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")


def refused(pattern: str) -> str | None:
    """Return why a pattern is not used; None for one that is. A repeat within a repeat can take longer than anybody waits."""
    if len(pattern) > LONGEST:
        return f"a pattern of {len(pattern):,} characters, at most {LONGEST:,} are taken"
    try:
        re.compile(pattern)
        repeats, choices = _counts(parser.parse(pattern), within=False)
    except (re.error, RecursionError, OverflowError) as error:
        return f"not a pattern (regular expression): {error}"
    except ValueError as nested:
        return str(nested)
    if repeats > MOST_REPEATS or choices > MOST_CHOICES:
        return f"a pattern of {repeats} repeats and {choices} choices in a row, at most {MOST_REPEATS} and {MOST_CHOICES} are taken"
    return None


def _counts(items: Any, within: bool) -> tuple[int, int]:
    """Count (repeats, choices) on the way through these parts that has most of them. Raises ValueError for either in a repeat."""
    repeats, choices = 0, 0
    for kind, value in items:
        name, below = str(kind), []
        if name in _REPEATS:
            least, most, inner = value
            varies = least != most
            repeated = int(most) > 1
            if within and varies:
                raise ValueError("a pattern with a repeat within a repeat, which may never end on a name")
            repeats, choices = repeats + (varies and repeated), choices + (varies and not repeated)
            below = [_counts(inner, within or repeated)]
        elif name == "BRANCH":
            if within:
                raise ValueError("a pattern with alternatives within a repeat, which may never end on a name")
            choices += 1
            below = [_counts(branch, within) for branch in value[1]]
        elif name in ("SUBPATTERN", "ATOMIC_GROUP", "ASSERT", "ASSERT_NOT"):
            below = [_counts(value if name == "ATOMIC_GROUP" else value[-1], within)]
        elif name == "GROUPREF_EXISTS":
            below = [_counts(branch, within) for branch in value[1:] if branch]
        repeats += max((found[0] for found in below), default=0)
        choices += max((found[1] for found in below), default=0)
    return repeats, choices
