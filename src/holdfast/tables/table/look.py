"""What `data check` says of a table: the law of rows, its columns, and what its checks find; with a config, as its run would."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from holdfast.base.errors import BLOCKED, Stop
from holdfast.base.files import Json
from holdfast.config.config import Config
from holdfast.config.table import columns_of
from holdfast.data.files.raw_row import RawRow
from holdfast.data.files.read import read_rows
from holdfast.data.judge.layouts import parse_example
from holdfast.data.judge.turns import BadRow
from holdfast.run.types import Finding
from holdfast.tables.table.build import form_of
from holdfast.tables.table.frames import TooWide, open_frames
from holdfast.tables.table.intake import Intake, Raw
from holdfast.tables.table.schema import Schema, found_schema, open_all, schema_of
from holdfast.tables.table.statistics import Moments, facts_of, moments
from holdfast.tables.table.survey import judge, survey
from holdfast.tables.table.table_set import TRAINING

Keep = Callable[[pl.DataFrame], None]
_LOOKED_AT = 20  # rows
_EXAMPLES = 3  # of each reason
_MOST_NAMES = 1000  # values of a column of names, where no config says


def seems_a_table(files: list[str]) -> bool:
    """True if the first file has columns of numbers and times, at least half of them, and rows that are no text to learn."""
    try:
        frames = open_frames(Path(files[0]))
        schema = found_schema(frames)
        head = next(frames.chunks(list(frames.names), _LOOKED_AT))
        rows = list(islice(read_rows(files[0]), _LOOKED_AT))
    except TooWide:
        return True  # which is then said
    except (Stop, OSError):
        return False
    filled = [name for name in schema.numbers if head[name].null_count() < len(head)]
    counted = len(filled) + len(schema.others) + bool(schema.time)
    return 2 * counted >= len(frames.names) and not any(isinstance(row, RawRow) and _is_text(row.value) for row in rows)


def _is_text(value: Any) -> bool:
    try:
        parse_example(value, "auto")
    except BadRow as bad:
        return bad.reason != "missing_field"
    return True


def look_at(
    files: list[str],
    config: Config | None,
    folder: Path,
    reject: Callable[[Json], None],
    keep: Callable[[pl.DataFrame], None] | None = None,
) -> Json:
    """Look at every row. config: of a run on tables, else nothing is known to be the target. reject: is given each rejected row; keep: the
    others, in frames of all columns; folder: for what is written meanwhile. Raises Stop(1), OSError."""
    frames = open_all(files)
    schema = schema_of(frames[0], columns_of(config)) if config else found_schema(frames[0])
    missing, most = (columns_of(config).missing, columns_of(config).max_categories) if config else ("indicator", _MOST_NAMES)
    examples: dict[str, list[Json]] = {}

    def note(row: Json) -> None:
        some = examples.setdefault(row["reason"], [])
        if len(some) < _EXAMPLES:
            some.append({"file": row["file"], "line": row["line"], "detail": row["detail"], "text": row["raw"]})
        reject(row)

    intake = Intake(schema, missing, most, folder, note, strict=config is not None, keep=keep)
    try:
        for number, file in enumerate(frames):
            intake.take(file, number)
        raw = intake.done()
        late, found, findings = _as_its_run(config, schema, raw) if config else _unaimed(schema, raw)
    finally:
        intake.close()
    rejected = raw.by_reason.total()
    return {
        "rows": raw.read,
        "kept": raw.read - rejected,
        "mended": 0,
        "rejected": rejected,
        "by_reason": dict(raw.by_reason.most_common()),
        "notes": late,
        "tokens": {"total": 0, **dict.fromkeys(("min", "p50", "p90", "p99", "max"))},
        "duplicates": raw.repeated,
        "near_duplicates": 0,
        "target": schema.target,
        "learned": schema.kind if schema.target else None,
        "time": schema.time,
        "columns": _columns(schema, raw, found),
        "findings": [asdict(finding) for finding in findings],
        "examples": examples,
    }


def _as_its_run(config: Config, schema: Schema, raw: Raw) -> tuple[dict[str, int], Moments | None, list[Finding]]:
    """Return (rows kept with nothing to learn, by reason; moments of the training part; findings, among them what would stop the run)."""
    try:
        seen = survey(config, schema, raw)
    except Stop as stop:
        return {}, None, [_stopped(stop)]
    late = {reason: len(rows) for reason, rows in seen.late.items() if len(rows)}
    try:
        form_of(config, schema, raw, seen)
    except Stop as stop:
        return late, seen.found, [*seen.findings, _stopped(stop)]
    return late, seen.found, seen.findings


def _stopped(stop: Stop) -> Finding:
    return Finding("table", "block", stop.message, stop.hint)


def _unaimed(schema: Schema, raw: Raw) -> tuple[Counter[str], Moments | None, list[Finding]]:
    """Return the same as `_as_its_run`, for a table of which no target is known."""
    count = len(raw.arrays["line"])
    if not count:
        return Counter(), None, [Finding("table", "block", "no row is left", "see the reasons above")]
    found = moments(raw.arrays["numbers"], np.ones(count, np.bool_))
    facts = facts_of(raw, schema, np.full(count, TRAINING, np.uint8), np.zeros(count), found, None)
    return Counter(), found, judge(facts)


def _columns(schema: Schema, raw: Raw, found: Moments | None) -> list[Json]:
    numbers = [{"name": name, "kind": "number", **_spread(found, at)} for at, name in enumerate(schema.numbers)]
    names = [
        {"name": name, "kind": "name", "values": None if name in raw.uncounted else len(raw.names[name])} for name in schema.categories
    ]
    return [*numbers, *names, *({"name": name, "kind": "time"} for name in filter(None, (schema.time, *schema.others)))]


def _spread(found: Moments | None, at: int) -> Json:
    """Summarise the spread of a column of numbers; null where nothing was counted."""
    if found is None or not found.count[at]:
        return {"low": None, "mean": None, "high": None, "deviation": None, "missing": None if found is None else int(found.missing[at])}
    numbers = {"low": found.low[at], "mean": found.mean[at], "high": found.high[at], "deviation": found.deviation[at]}
    return {name: float(value) for name, value in numbers.items()} | {"missing": int(found.missing[at])}


def config_for(files: list[str], target: str, time: str | None) -> Config:
    """Return the config of a run on these files that learns this column from all others. Raises Stop(1) where both names are one."""
    if target == time:
        raise Stop(BLOCKED, f"--target and --time are both {target}", "name two columns")
    return Config.model_validate(
        {"task": "tabular", "data": {"files": files, "held_out": 0}, "table": {"target": target, "time": time, "split": "row"}}
    )
