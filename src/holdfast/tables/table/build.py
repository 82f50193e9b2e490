"""From the files of a config to the arrays a trainer maps: judged, parted, scaled. A row costs a few dozen bytes of memory."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.base.errors import BLOCKED, Stop
from holdfast.base.files import Json, replacing
from holdfast.base.units import listed
from holdfast.config.config import Config
from holdfast.config.table import columns_of
from holdfast.data.token_set.arrays import header_of, in_file_order
from holdfast.run.types import Finding
from holdfast.tables.table.form import CategoryColumn, Form, Number, TargetColumn
from holdfast.tables.table.intake import Intake, Raw
from holdfast.tables.table.schema import Schema, open_all, schema_of
from holdfast.tables.table.statistics import chunks, counts_of, moments
from holdfast.tables.table.survey import LATE, TableSurvey, survey
from holdfast.tables.table.table_set import TRAINING, UNUSED

Array = npt.NDArray[Any]
_KINDS: dict[str, np.dtype[Any]] = {"inputs": np.dtype("<f4"), "codes": np.dtype("<i4"), "target": np.dtype("<f4"), "part": np.dtype("u1")}
_KINDS |= {"file": np.dtype("<i4"), "line": np.dtype("<i8"), "time": np.dtype("<i8")}


@dataclass(frozen=True)
class Built:
    """A table as it lies in its file. read = kept + rejected rows."""

    form: Form
    digest: str
    read: int
    rejected: int
    by_reason: Counter[str]
    findings: list[Finding]
    parts: dict[str, int]


def build_table(config: Config, folder: Path, out: Path, reject: Callable[[Json], None], grouped: bool = True) -> Built:
    """Write `out`, whole or not at all. folder: for what is written meanwhile. Raises Stop(1), OSError.

    grouped: with the group of each row, where they are parted by it; older runs have none.
    """
    names = (*config.data.files, *config.data.held_out_files)
    files = open_all(names)
    table = columns_of(config)
    schema = schema_of(files[0], table)
    intake = Intake(schema, table.missing, table.max_categories, folder, reject)
    try:
        for number, file in enumerate(files):
            intake.take(file, number)
        return _arranged(config, schema, intake.done(), out, names, reject, grouped)
    finally:
        intake.close()


def _arranged(
    config: Config, schema: Schema, raw: Raw, out: Path, names: tuple[str, ...], reject: Callable[[Json], None], grouped: bool
) -> Built:
    seen = survey(config, schema, raw)
    for reason, rows in seen.late.items():
        raw.by_reason.update([reason] * len(rows))
        for row in rows:
            place = {"file": names[raw.arrays["file"][row]], "line": int(raw.arrays["line"][row])}
            reject({**place, "reason": reason, "detail": LATE[reason], "raw": ""})
    if blocking := [finding for finding in seen.findings if finding.severity == "block"]:
        raise Stop(BLOCKED, "\n".join(one.message for one in blocking), "\n  -> ".join(dict.fromkeys(one.fix for one in blocking)))
    part, target = seen.part, seen.target
    form = form_of(config, schema, raw, seen)
    scaled: Callable[[Array], Array] = form.target.scaled
    if schema.kind == "classification":
        scaled = _class_numbers(form.target, raw, columns_of(config).horizon)
        for some in chunks(len(part)):  # rows of a class that no training row has are not used
            part[some][scaled(target[some]) < 0] = UNUSED
    kinds = _KINDS | ({"group": np.dtype("<i4")} if grouped and form.parted_by == "group" else {})
    digest = _write(out, kinds, form, schema, raw, part, lambda some: scaled(target[some]), names)
    counts = np.bincount(part, minlength=3)
    unknown = int(np.isnan(seen.target).sum())
    parts = {"train": int(counts[1]), "held_out": int(counts[2]), "unused": int(counts[0]) - unknown}
    return Built(form, digest, raw.read, raw.by_reason.total(), raw.by_reason, seen.findings, parts)


def form_of(config: Config, schema: Schema, raw: Raw, seen: TableSurvey) -> Form:
    """Return what goes into the network and what comes out. Raises Stop(1) where nothing can be learned of the training part."""
    table, found, training = columns_of(config), seen.found, seen.part == TRAINING
    deviation, rows = found.deviation, int(training.sum())
    numbers, left_out = [], []
    for at, name in enumerate(schema.numbers):
        flat = not found.low[at] < found.high[at]
        missing = int(found.missing[at])
        indicator = table.missing == "indicator" and 0 < missing < rows
        if flat and not (indicator and found.count[at]):
            left_out.append(name)
            continue
        scaled = table.scaling == "standard" and deviation[at] > 0
        mean, scale = (float(found.mean[at]), float(deviation[at])) if scaled else (0.0, 1.0)
        extremes = {"low": float(found.low[at]), "high": float(found.high[at])}
        numbers.append(Number(name=name, mean=mean, scale=scale, indicator=indicator, missing=missing, **extremes))
    categories = []
    for at, name in enumerate(schema.categories):
        counts = counts_of(raw.arrays["codes"][:, at], training)
        there = [code for code in counts if code >= 0]
        if len(there) > table.max_categories:
            text = f"the column {name} has {len(there):,} different texts, table.max_categories is {table.max_categories:,}"
            raise Stop(BLOCKED, text, "leave it out with table.ignore, or raise table.max_categories")
        if len(there) < 2 and -1 not in counts:
            left_out.append(name)
            continue
        categories.append(CategoryColumn(name=name, values=tuple(raw.names[name][code] for code in there)))
    if not numbers and not categories:
        raise Stop(BLOCKED, f"no column is left to learn from: {', '.join(left_out)} never change", "add columns that do")
    return Form(
        numbers=tuple(numbers),
        categories=tuple(categories),
        target=_target(config, schema, raw, seen.target, training),
        parted_by=seen.parted_by,
        purged=seen.purged,
        left_out=tuple(left_out),
    )


def _target(config: Config, schema: Schema, raw: Raw, values: Array, training: Array) -> TargetColumn:
    table = columns_of(config)
    facts: Json = {"name": table.target, "kind": schema.kind, "horizon": table.horizon}
    if schema.kind == "regression":
        found = moments(values[:, None], training)
        mean, scale = float(found.mean[0]), float(found.deviation[0])
        if not scale > 0:
            raise Stop(BLOCKED, f"the target {schema.target} is {mean:g} in every training row", "correct table.target")
        return TargetColumn(**facts, mean=mean, scale=scale)
    counts = counts_of(values, training)
    names = {0: "falls", 1: "rises"} if table.horizon else dict(enumerate(raw.classes))
    order = sorted(counts) if table.horizon else sorted(counts, key=lambda code: _sort_key(names[code]))
    if len(order) < 2:
        raise Stop(
            BLOCKED,
            f"the target {schema.target} has one class in the training part: {names[order[0]]}",
            "correct table.target or the split",
        )
    for one, other in pairwise(names[code] for code in order):
        if _without_point(one) == _without_point(other):
            text = f"the target {schema.target} has the classes {one} and {other}, which are one number"
            raise Stop(BLOCKED, text, "write it alike in all rows and files")
    weighted = table.class_weights if isinstance(table.class_weights, dict) else {}
    if unknown := sorted(weighted.keys() - {names[code] for code in order}):
        text = f"table.class_weights: no training row is of the class {listed(unknown, 5)}; those of {schema.target}: "
        raise Stop(BLOCKED, text + listed([names[code] for code in order], 20), "correct the names of the classes")
    return TargetColumn(**facts, classes=tuple(names[code] for code in order), counts=tuple(counts[code] for code in order))


def _without_point(name: str) -> str:
    """Return a whole number as it is written without a point; codes such as 01 and 1, or versions 1.1 and 1.10, stay apart."""
    return re.sub(r"^(-?\d+)\.0+$", r"\1", name)


def _sort_key(name: str) -> tuple[bool, float, str]:
    """Return the key that sorts numbers by their size, before texts."""
    try:
        return False, float(name), name
    except ValueError:
        return True, 0.0, name


def _class_numbers(target: TargetColumn, raw: Raw, horizon: int | None) -> Callable[[Array], Array]:
    """Return a function from codes to the target's class numbers: -1 for a class no training row has, NaN where there is none."""
    names = ["falls", "rises"] if horizon else raw.classes
    place = {name: at for at, name in enumerate(target.classes)}
    numbers = np.array([*(place.get(name, -1) for name in names), np.nan], np.float64)
    return lambda codes: numbers[np.where(np.isnan(codes), len(names), codes).astype(int)]


def _write(
    out: Path, kinds: dict[str, np.dtype[Any]], form: Form, schema: Schema, raw: Raw, part: Array,
    target: Callable[[slice], Array], files: tuple[str, ...],
) -> str:  # fmt: skip
    """Write the arrays one after the other, a chunk at a time; return the SHA-256 of the file."""
    rows = len(part)
    wide = {"inputs": form.width, "codes": len(form.categories)}
    sizes = {name: rows * wide.get(name, 1) for name in kinds}
    digest = hashlib.sha256()
    made: dict[str, Callable[[slice], Array]] = {
        "inputs": lambda some: _inputs(form, _columns(raw.arrays["numbers"], schema.numbers, [one.name for one in form.numbers], some)),
        "codes": lambda some: _codes(form, schema, raw, some),
        "target": lambda some: np.nan_to_num(target(some)),
        "part": lambda some: part[some],
        "file": lambda some: raw.arrays["file"][some],
        "line": lambda some: raw.arrays["line"][some],
        "time": lambda some: raw.arrays["time"][some],
        "group": lambda some: raw.arrays["group"][some],
    }
    with replacing(out) as handle:
        for block in _blocks(header_of({"form": form.model_dump(mode="json"), "files": files}, kinds, sizes), kinds, made, rows):
            digest.update(block)
            handle.write(block)
    return digest.hexdigest()


def _blocks(header: bytes, kinds: dict[str, np.dtype[Any]], made: dict[str, Callable[[slice], Array]], rows: int) -> Iterator[bytes]:
    yield header
    for name in in_file_order(kinds):
        for some in chunks(rows):
            yield np.ascontiguousarray(made[name](some), kinds[name]).tobytes()


def _columns(values: Array, names: tuple[str, ...], wanted: list[str], rows: slice) -> Array:
    block = np.asarray(values[rows], np.float64)
    return block[:, [names.index(name) for name in wanted]]


def _inputs(form: Form, numbers: Array) -> Array:
    """Return the network's inputs for numbers [rows, form.numbers]: scaled, 0 where one is missing, indicators behind them."""
    missing = np.isnan(numbers)
    scaled = np.where(missing, 0.0, (numbers - form.means) / form.scales)
    return np.concatenate([scaled, missing[:, form.indicators]], axis=1)


def _codes(form: Form, schema: Schema, raw: Raw, rows: slice) -> Array:
    """Return the codes of the form's categories: 0 for a name no training row has."""
    out = np.zeros((rows.stop - rows.start, len(form.categories)), np.int32)
    for at, category in enumerate(form.categories):
        place = {name: number + 1 for number, name in enumerate(category.values)}
        codes = np.array([*(place.get(name, 0) for name in raw.names[category.name]), 0], np.int32)
        out[:, at] = codes[raw.arrays["codes"][rows, schema.categories.index(category.name)]]
    return out
