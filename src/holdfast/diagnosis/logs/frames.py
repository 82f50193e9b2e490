"""Say where a traceback ends, with or without its message, and which of its lines only quote source. Pure; judges nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.diagnosis.logs.text import Line

_FRAMES = (
    re.compile(  # Python, IPython; also with the start of the line cut off
        r'(?:\bFile "?|^(?=[\w./~-]+"))(?P<file>[^"\n]{1,400}?\.py|<[\w ]+>)"?(?:, line |:)\d+,? in (?P<name>[\w.<>]+)'
    ),
    re.compile(r"^\W*(?P<file>\w[\w./~-]*\.py)\]?(?:\([^)]*\))? in (?P<name>[\w.<>]+)\("),  # notebooks
    re.compile(r"^[│|] (?P<file>/\S+\.py):\d+ in (?P<name>[\w.<>]+)"),  # rich
)
_SHOWN = re.compile(r"^\s*(?:-+>|[│|] ❱)\s*\d+\s+(?P<code>\S(?:.*[^\s│])?)[\s│]*$")  # the line of code that notebooks and rich point at
_MESSAGE = re.compile(
    r"^\W*(?:E +)?(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Timeout|Warning|Found)\b|^.*\b[Aa]ssertion .*failed"
)
_NO_CODE = re.compile(r"^\s*[\^~│\-─╭╰|]*\s*$")
_WRAPPERS = re.compile(r"nn/modules/module\.py|_contextlib\.py|accelerate/hooks\.py|_dynamo/eval_frame\.py|nn/parallel/distributed\.py")
_COMMENT = re.compile(r"(?:^|(?<!\s)\s+)#\s.*$")
AFTER = 4  # lines that may follow the last frame: its code, markers, what surrounds it in a notebook
PARTS = 3  # of the file's path
_ANY_NAME = re.compile(r"^[\s|+]*(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:: |$)")
_FULL_NAME = re.compile(r"^(?:[A-Za-z_]\w*\.)+[A-Z]\w*(?:: |$)")
_IN_A_BOX = re.compile(r"^\s*(?:[│|╭╰]|-+>\s*\d+\s|\d+\s{2,})")  # rich, notebooks
_WARNED = re.compile(r"\.py:\d+: \w*Warning: ")
_RAISED = re.compile(r"^\W*(?:E +)?((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Timeout|Found|Stop\w+|Unsupported)\b)")


def cut_traceback(lines: Sequence[Line]) -> Line | None:
    """Return `reading: the traceback is cut in FILE, NAME: CODE`, where a log ends in frames and names no exception."""
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
    code = _COMMENT.sub("", pointed or (rest[0].text.strip() if rest else ""))
    place = "/".join(file.split("/")[-PARTS:])
    return Line(lines[at].number, f"reading: the traceback is cut in {place}, {name}: {code}", lines[at].rank)


def raised_in(lines: Sequence[Line]) -> Line | None:
    """Return `reading: raised in FILE, NAME, as KIND`, of the first exception that stands below a frame.

    A message often says less than the place it was raised in: who checks there is one part of one library.
    """
    last: tuple[int, tuple[str, str]] | None = None
    own = tracebacks(lines).own
    for at, line in enumerate(lines):
        if found := _frame(line.text):
            last = at, found
        elif last and at in own and at - last[0] <= AFTER and (kind := _RAISED.match(line.text)):
            where, (file, name) = last
            place = "/".join(file.split("/")[-PARTS:])
            return Line(lines[where].number, f"reading: raised in {place}, {name}, as {kind[1]}", lines[where].rank)
    return None


@dataclass(frozen=True)
class Tracebacks:
    """Positions in a log.

    own: what exceptions say themselves. quoted: the source above one of them, and the frames that only passed its call on.
    """

    own: tuple[int, ...]
    quoted: frozenset[int]


def tracebacks(lines: Sequence[Line]) -> Tracebacks:
    """Find the exceptions' own lines, and what their tracebacks and warnings quote, which was there before anything failed.

    What no exception speaks below is not among it: in a traceback that is cut it is all there is.
    """
    own: list[int] = []
    quoted: set[int] = set()
    waiting: list[int] = []
    newest: int | None = None  # frame
    depth: int | None = None  # how far the newest frame is indented; None: outside of a traceback
    for at, line in enumerate(lines):
        text, indent = line.text, len(line.text) - len(line.text.lstrip())
        if _frame(text):
            waiting += [newest] if depth is not None and newest is not None else []
            depth, newest = indent, at
        elif _speaks(text, indent, depth, below_frame=newest == at - 1):
            quoted, waiting, depth = quoted | set(waiting), [], None
            own.append(at)
        elif depth is not None and (indent > depth or _IN_A_BOX.match(text) or _frame(lines[at - 1].text)):
            waiting.append(at)
        elif at and indent and _WARNED.search(lines[at - 1].text):
            quoted.add(at)
    return Tracebacks(tuple(own), frozenset(quoted))


def _speaks(text: str, indent: int, depth: int | None, below_frame: bool) -> bool:
    """Return whether a line is an exception's own, of any name where it stands below frames.

    Python writes it further left than those; where their indentation was lost, its class and module tell it.
    """
    if _RAISED.match(text):
        return depth is None or indent <= depth
    if depth is None:
        return False
    if indent < depth:
        return _ANY_NAME.match(text) is not None
    return indent == depth == 0 and not below_frame and _FULL_NAME.match(text) is not None


def _pointed_at_alone(lines: Sequence[Line]) -> Line | None:
    """Return the line of code that a notebook or rich points at, where the excerpt lacks even the name of its file."""
    shown = [(at, found["code"]) for at, line in enumerate(lines) if (found := _SHOWN.match(line.text))]
    if not shown or any(_MESSAGE.match(line.text) for line in lines[shown[-1][0] + 1 :]):
        return None
    at, code = shown[-1]
    return Line(lines[at].number, f"reading: the traceback is cut in ?, ?: {_COMMENT.sub('', code)}", lines[at].rank)


def _frame(text: str) -> tuple[str, str] | None:
    found = next((match for pattern in _FRAMES if (match := pattern.search(text))), None)
    return (found["file"].replace("\\", "/"), found["name"]) if found else None
