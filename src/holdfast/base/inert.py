"""Make text of unknown origin harmless to a terminal: what would move a cursor, set a title or turn letters round is shown instead."""

from __future__ import annotations

import re
from pathlib import Path

from holdfast.base.errors import USAGE, Stop

# control characters but for line ends and tabs, and those that change the direction of what follows
_ACTIVE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def inert(text: str) -> str:
    """The text with everything a terminal would obey written out, \\x1b for an escape."""
    return _ACTIVE.sub(lambda found: repr(found[0])[1:-1], text)


def say(text: str) -> None:
    """Print a text of unknown origin."""
    print(inert(text))


def refuse_unwritable_name(path: Path) -> None:
    """Raise Stop(2) for a path whose bytes are no UTF-8: journals and JSON, in which it would stand, are."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        text = f"{str(path).encode(errors='backslashreplace').decode()}: this name is not UTF-8"
        raise Stop(USAGE, text, "rename it, or give it a link with another name") from None
