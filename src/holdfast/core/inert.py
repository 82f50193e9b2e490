"""Make text of unknown origin harmless to a terminal: what would move a cursor, set a title or turn letters round is shown instead."""

from __future__ import annotations

import re

# control characters but for line ends and tabs, and those that change the direction of what follows
_ACTIVE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def inert(text: str) -> str:
    """The text with everything a terminal would obey written out, \\x1b for an escape."""
    return _ACTIVE.sub(lambda found: repr(found[0])[1:-1], text)


def say(text: str) -> None:
    """Print a text of unknown origin."""
    print(inert(text))
