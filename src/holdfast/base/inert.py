"""Text for a terminal: harmless, whatever it holds (what would move a cursor, set a title or turn letters is shown), and of its width."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from holdfast.base.errors import USAGE, Stop

# control characters but for line ends and tabs, and those that change the direction of what follows
_ACTIVE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_COMMAND = re.compile(  # in back-quotes, at the end of a sentence, or how a remedy begins
    r"`[^`\n]+`|(?:(?<=: )holdfast|-> (?:holdfast|pip|git|export|unset|cd|sudo|ulimit)) [^;()\n]+"
)
_TYPED = re.compile(r" *(?:next\b|resume with:)| {5}\S")  # how a line begins that is to be typed
_BEGINS = re.compile(r"^ *(?:[!-] |-> |\d+\. )|(?<=\S) {2,}(?=\S)")  # what stands before the words of a line
MOST_CHARS = 180  # of a line about an incident; what it leaves out is in events.jsonl and the report
_HELD = "\0"  # a space that no line is broken at


def inert(text: str) -> str:
    """Return the text with everything a terminal would obey written out, \\x1b for an escape."""
    return _ACTIVE.sub(lambda found: repr(found[0])[1:-1], text)


def hanging(text: str, width: int, indent: int, begins_at: int = 0) -> str:
    """Wrap the text in lines of less than `width` columns, all but the first indented; a command, and a word that is wider, stay whole.

    begins_at: the column of its first letter, after what was printed before it.
    """
    held = _COMMAND.sub(lambda found: found[0].replace(" ", _HELD), text)
    wrap = textwrap.TextWrapper(
        max(width - 1, indent + 10),  # some terminals wrap what fills their last column
        initial_indent=" " * begins_at,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    lines = [line for part in held.split("\n") for line in wrap.wrap(part) or [""]]
    return "\n".join(lines)[begins_at:].replace(_HELD, " ")


def brief(text: str) -> str:
    """Cut a text to a line of at most MOST_CHARS characters, between two of its clauses where that is possible.

    The last clause, which says what is done, stays where it has room.
    """
    if len(text) <= MOST_CHARS:
        return text
    _, parted, last = text.rpartition("; ")
    end = f" …; {last}" if parted and len(last) <= MOST_CHARS // 2 else " …"
    cut = text[: MOST_CHARS - len(end)]
    clause = max(cut.rfind(mark, len(cut) // 2) for mark in ("; ", ", ", ": "))
    return (cut[:clause] if clause > 0 else cut.rstrip()) + end


def fitted(text: str, width: int) -> str:
    """Wrap the lines that a terminal would break inside a word, under where their words begin; one that is to be typed stays whole."""
    return "\n".join(line if len(line) < width or _TYPED.match(line) else _wrapped(line, width) for line in text.split("\n"))


def _wrapped(line: str, width: int) -> str:
    begins_at = len(line) - len(line.lstrip(" "))
    return line[:begins_at] + hanging(line[begins_at:], width, _words_at(line, width), begins_at)


def _words_at(line: str, width: int) -> int:
    """Return the column at which the words of a line begin, behind its mark, number or name."""
    before = [found.end() for found in _BEGINS.finditer(line, 0, width * 2 // 3)]
    return before[-1] if before else len(line) - len(line.lstrip(" ")) + 2


def columns(stream: TextIO | None) -> int:
    """Return the width of the terminal that a stream writes to; 0 where it is none."""
    return shutil.get_terminal_size().columns if stream is not None and stream.isatty() else 0


def say(text: str, stream: TextIO | None = None) -> None:
    """Print a text of unknown origin, on standard output where no stream is given; wrapped on a terminal, as it is elsewhere."""
    stream = stream or sys.stdout
    width = columns(stream)
    print(fitted(inert(text), width) if width else inert(text), file=stream, flush=True)


def teller(in_json: bool) -> Callable[[str], None]:
    """Return what prints a command's notes: on standard error where standard output holds its JSON."""
    return lambda text: say(text, sys.stderr if in_json else sys.stdout)


def refuse_unwritable_name(path: Path) -> None:
    """Raise Stop(2) for a path whose bytes are no UTF-8: journals and JSON, in which it would stand, are."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        with contextlib.suppress(UnicodeDecodeError):
            text = f"{os.fsencode(path).decode()}: Python takes names for ASCII here, by the locale (LC_ALL, LANG)"
            raise Stop(USAGE, text, "repeat the command with PYTHONUTF8=1 before it") from None
        text = f"{str(path).encode(errors='backslashreplace').decode()}: this name is not UTF-8"
        raise Stop(USAGE, text, "rename it, or give it a link with another name") from None
