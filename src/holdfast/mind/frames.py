"""Say where a traceback ends, with or without its message. Pure; what that place speaks for is the cards' business."""

from __future__ import annotations

import re
from collections.abc import Sequence

from holdfast.core.logtext import Line

_FRAMES = (
    re.compile(  # Python, IPython; also with the start of the line cut off
        r'(?:\bFile "?|^(?=[\w./~-]+"))(?P<file>[^"\n]+?\.py|<[\w ]+>)"?(?:, line |:)\d+,? in (?P<name>[\w.<>]+)'
    ),
    re.compile(r"^\W*(?P<file>[\w./~-]+\.py)\]?(?:\([^)]*\))? in (?P<name>[\w.<>]+)\("),  # notebooks
    re.compile(r"^[│|] (?P<file>/\S+\.py):\d+ in (?P<name>[\w.<>]+)"),  # rich
)
_SHOWN = re.compile(r"^\s*(?:-+>|[│|] ❱)\s*\d+\s+(?P<code>\S.*?)[\s│]*$")  # the line of code that notebooks and rich point at
_MESSAGE = re.compile(
    r"^\W*(?:E +)?(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Timeout|Warning|Found)\b|^.*\b[Aa]ssertion .*failed"
)
_NO_CODE = re.compile(r"^\s*[\^~│\-─╭╰|]*\s*$")
_WRAPPERS = re.compile(r"nn/modules/module\.py|_contextlib\.py|accelerate/hooks\.py|_dynamo/eval_frame\.py|nn/parallel/distributed\.py")
AFTER = 4  # lines that may follow the last frame: its code, markers, what surrounds it in a notebook
PARTS = 3  # of the file's path
_RAISED = re.compile(r"^\W*(?:E +)?((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Timeout|Found|Stop\w+|Unsupported)\b)")


def cut_traceback(lines: Sequence[Line]) -> Line | None:
    """`reading: the traceback is cut in FILE, NAME: CODE`, where a log ends in frames and names no exception."""
    frames = [(at, found) for at, line in enumerate(lines) if (found := _frame(line.text))]
    if not frames:
        return _pointed_at_alone(lines)
    last = frames[-1][0]
    rest = [line for line in lines[last + 1 :] if not _NO_CODE.match(line.text)]
    if any(_MESSAGE.match(line.text) for line in rest):
        return None
    pointed = next((shown["code"] for line in rest if (shown := _SHOWN.match(line.text))), None)
    if pointed is None and len(rest) > AFTER:
        return None
    called = [one for one in frames if not _WRAPPERS.search(one[1][0])]  # what only passes a call on says nothing
    at, (file, name) = (called or frames)[-1]
    if at != last:
        rest, pointed = list(lines[at + 1 : at + 2]), None
    code = pointed or (rest[0].text.strip() if rest else "")
    place = "/".join(file.split("/")[-PARTS:])
    return Line(lines[at].number, f"reading: the traceback is cut in {place}, {name}: {code}", lines[at].rank)


def raised_in(lines: Sequence[Line]) -> Line | None:
    """`reading: raised in FILE, NAME, as KIND: CODE`, of the first exception that stands below a frame.

    A message often says less than the place it was raised in: who checks there is one part of one library.
    """
    last: tuple[int, tuple[str, str]] | None = None
    for at, line in enumerate(lines):
        if found := _frame(line.text):
            last = at, found
        elif last and at - last[0] <= AFTER and (kind := _RAISED.match(line.text)):
            where, (file, name) = last
            code = next((one.text.strip() for one in lines[where + 1 : at] if not _NO_CODE.match(one.text)), "")
            place = "/".join(file.split("/")[-PARTS:])
            return Line(lines[where].number, f"reading: raised in {place}, {name}, as {kind[1]}: {code}", lines[where].rank)
    return None


def _pointed_at_alone(lines: Sequence[Line]) -> Line | None:
    """The line of code that a notebook or rich points at, where the excerpt has not even the name of its file."""
    shown = [(at, found["code"]) for at, line in enumerate(lines) if (found := _SHOWN.match(line.text))]
    if not shown or any(_MESSAGE.match(line.text) for line in lines[shown[-1][0] + 1 :]):
        return None
    at, code = shown[-1]
    return Line(lines[at].number, f"reading: the traceback is cut in ?, ?: {code}", lines[at].rank)


def _frame(text: str) -> tuple[str, str] | None:
    found = next((match for pattern in _FRAMES if (match := pattern.search(text))), None)
    return (found["file"].replace("\\", "/"), found["name"]) if found else None
