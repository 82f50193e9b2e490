"""Look at rows before there is a config: how many, how long, of what kind. Changes nothing."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from holdfast.base.files import Json
from holdfast.base.units import counted
from holdfast.base_model.folder import EMBEDDED
from holdfast.data.files.raw_row import RawRow
from holdfast.data.files.read import read_rows
from holdfast.data.judge.names import MARKS, PAIRS, TALKS, TWO_ANSWERS, in_our_case
from holdfast.data.judge.preferences import says_good
from holdfast.data.judge.rules import Rules
from holdfast.data.survey.clean import check_files
from holdfast.data.survey.findings import Findings
from holdfast.data.survey.survey import check_block
from holdfast.data.tokens.codec import Codec, load_codec, plain_codec
from holdfast.data.workers.workers import Copies, Workers
from holdfast.machine.system import usable_threads

_FIRST = 50  # rows whose fields tell their kind
_WHOLE = 500 << 20  # bytes of files that are read whole; of more the first rows tell
Fields = tuple[tuple[str, str], ...]
_TEXTS = {"text", "messages", "conversations"} | {name for pair in PAIRS for name in (pair.question, pair.answer)}


@dataclass(frozen=True)
class InFile:
    """What becomes of the rows of one file, how many for each reason, and as what layouts they are read."""

    name: str
    kept: int
    mended: int
    rejected: int
    by_reason: dict[str, int]
    layouts: list[str]

    def told(self) -> str:
        """Return the line about it, as `train` says it of all rows."""
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in self.by_reason.items())
        rows = self.kept + self.mended + self.rejected
        counts = f"{counted(rows, 'row')} = {self.kept:,} kept + {self.mended:,} repaired + {self.rejected:,} rejected"
        layouts = " and ".join(self.layouts)
        return f"{self.name}: {counts}{f' ({reasons})' if reasons else ''}{f'; read as {layouts}' if layouts else ''}"


@dataclass(frozen=True)
class LookedAt:
    """What rows are. kind: answers, pairs, marks or table; rows: kept ones, None where too many to count; tokens: as data check counts.

    why: of rejected rows, how many for each reason, and the first of them; numbered: marks are 0 and 1, which may be another thing.
    telling: rows by the fields that are not used and may change what a row means; limits: as in `Lengths.outlook`.
    """

    kind: str
    columns: tuple[str, ...]
    rows: int | None
    rejected: int
    longest: int | None
    p99: int | None
    bytes: int
    total_tokens: int | None = None
    why: str = ""
    files: tuple[InFile, ...] = ()
    numbered: bool = False
    telling: dict[str, int] = field(default_factory=dict)
    limits: tuple[dict[str, int], ...] = ()


def look_at_rows(files: list[str], model: str | None, fields: Fields = ()) -> LookedAt:
    """Look at the rows. model: a folder or `tiny`, whose tokenizer counts, else the embedded one; fields: names of ours with the files'.

    Raises Stop as reading does.
    """
    first = [row.value for file in files for row in islice(_good(file), _FIRST)]
    kind, columns = _kind(first, fields)
    size = sum(Path(file).stat().st_size for file in files)
    if kind == "table" or size > _WHOLE:
        return LookedAt(kind, columns, None, 0, None, None, size)
    rules = Rules(
        fields=fields,
        wanted="pairs" if kind == "pairs" else "marks" if kind == "marks" else "answers",
        learns="assistant" if kind == "answers" else "last",
    )
    findings = Findings()
    alone = sys.platform == "linux" and threading.active_count() == 1
    with (Copies if alone else Workers)(_codec(model), rules, usable_threads(), check_block) as crew:
        check_files(files, [], crew, findings)
    found = findings.as_json()
    tokens = found["tokens"]
    kept = found["kept"] + found["mended"]
    longest = int(found["histogram"]["edges"][-1]) if kept else None  # of a pair the longer one, not both
    p99 = min(tokens["p99"], longest) if longest else None
    numbered = kind == "marks" and any(_is_number(mark) and not isinstance(mark, bool) for mark in _marks(first, fields))
    return LookedAt(
        kind,
        columns,
        kept,
        found["rejected"],
        longest,
        p99,
        size,
        tokens["total"],
        _why(found, findings.rejected_for),
        tuple(_by_file(findings)),
        numbered,
        found["unused_fields"]["telling"],
        tuple(found["outlook"]["limits"]),
    )


def _by_file(findings: Findings) -> Iterator[InFile]:
    for name, found in findings.files.items():
        yield InFile(name, found.kept, found.mended, found.rejected, dict(found.by_reason.most_common()), list(findings.layouts[name]))


def _why(found: Json, rejected_for: Counter[str]) -> str:
    """Say why rows are rejected; empty where none is."""
    if not found["rejected"]:
        return ""
    counts = dict(rejected_for.most_common())
    first = next((shown[0] for reason in counts for shown in [found["examples"].get(reason)] if shown), None)
    told = ", ".join(f"{reason} {count:,}" for reason, count in counts.items())
    return f"{told}; the first, {first['file']}:{first['line']}: {first['detail']}" if first else told


def _good(file: str) -> Iterator[RawRow]:
    return (row for row in read_rows(file) if isinstance(row, RawRow) and isinstance(row.value, dict))


def _codec(model: str | None) -> Codec:
    if model in EMBEDDED:
        return load_codec(EMBEDDED[str(model)])
    if model and Path(model).is_dir() and (Path(model) / "tokenizer.json").exists():
        return load_codec(Path(model))
    return plain_codec(load_codec(EMBEDDED["tiny"]))


def _kind(rows: list[dict[str, Any]], fields: Fields = ()) -> tuple[str, tuple[str, ...]]:
    names = tuple(dict.fromkeys(name for row in rows for name in row))
    cased = _named(names, fields)
    in_pairs = sum(any(_named(row, fields) >= set(pair) for pair in TWO_ANSWERS) for row in rows)
    if in_pairs and 2 * in_pairs >= len(rows):
        return "pairs", names
    marks = _marks(rows, fields)
    answered = cased & set(TALKS) or any({pair.question, pair.answer} <= cased for pair in PAIRS)
    if marks and answered and None not in map(says_good, marks):
        return "marks", names
    if cased & _TEXTS or not rows:
        return "answers", names
    numbers = sum(_is_number(value) for row in rows for value in row.values())
    values = sum(len(row) for row in rows)
    return ("table" if numbers >= 0.5 * values else "answers"), names


def _named(names: Iterable[str], fields: Fields) -> set[str]:
    cased = {in_our_case(name) for name in names}
    return cased | {ours for ours, theirs in fields if in_our_case(theirs) in cased}


def _marks(rows: list[dict[str, Any]], fields: Fields) -> list[Any]:
    called = {*MARKS, *(in_our_case(theirs) for ours, theirs in fields if ours in MARKS)}
    return [value for row in rows for name, value in row.items() if in_our_case(name) in called and value is not None]


def _is_number(value: Any) -> bool:
    if isinstance(value, int | float):
        return True
    try:
        return bool(isinstance(value, str) and value and float(value) == float(value))
    except ValueError:
        return False
