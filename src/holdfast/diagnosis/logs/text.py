"""A log as lines: colours, prefixes of ranks and journals, and overwritten progress bars taken off. Judges nothing, opens no file."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from holdfast.base.files import Json

TROUBLE = (  # parts of words that stand on or beside nearly every line that names a cause
    *("rror", "xception", "raceback", "ailed", "fault", "illed", "bort", "ignal ", " nan", "NaN", "imeout", "imed out"),
    *("annot", "ut of memory", "WARN", "Xid", "amdgpu", "nvalid"),
)
LONGEST = 4000  # characters of a line that are looked at
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[@-Z\\-_]")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]+")
_STAMP = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
_PREFIXES = re.compile(
    r"^(?:"
    r"\[(?:default|rank)?(?P<a>\d+)\]: ?"  # [rank3]: of torch, [3]: of torchrun --log-dir
    r"|\[\d+,(?P<b>\d+)\]<std(?:err|out)>: ?"  # mpirun --tag-output
    r"|\(\w+ pid=\d+[^)]*\) "  # ray
    rf"|{_STAMP} std(?:err|out) [FP] "  # kubernetes
    r"|(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|" + _STAMP + r") [\w.-]+ [\w./@-]+(?:\[\d+\])?: "  # journal, syslog
    r"|[\w.-]+-\d+ +\| "  # docker compose
    r")"
)


@dataclass(frozen=True)
class Line:
    """One line of a log. `number` counts from 1 in the file; None for what is known otherwise (an exit code, a fact of the machine)."""

    number: int | None
    text: str
    rank: int | None = None


@dataclass(frozen=True)
class Evidence:
    """All there is to judge a failure report by. `exit_code`: negative for a signal. None and {} mean unknown."""

    lines: tuple[Line, ...]
    exit_code: int | None = None
    machine: Json = field(default_factory=dict)


def clean_lines(text: str, first_number: int = 1) -> list[Line]:
    """Split a piece of a log into clean lines; of a progress bar that redraws itself the last state is kept, and other text beside it."""
    lines = []
    for number, raw in enumerate(text.split("\n"), first_number):
        parts = [part for part in raw.split("\r") if part.strip()]
        for at, part in enumerate(parts):
            redrawn = at + 1 < len(parts) and "%|" in part and "%|" in parts[at + 1] and "Traceback" not in part
            if not redrawn:
                lines.append(clean(part, number))
    return [line for line in lines if line.text]


def clean(raw: str, number: int | None = None) -> Line:
    """Clean one line of colours, control characters and prefixes; keep the rank that a prefix told."""
    text, rank = _CONTROLS.sub(" ", _ESCAPES.sub("", raw[:LONGEST])), None
    while match := _PREFIXES.match(text):
        found = match["a"] or match["b"]
        rank = int(found) if found else rank
        text = text[match.end() :]
    return Line(number, text.rstrip(), rank)
