"""Decide what the columns of a table are, by the config and by the first rows of its first file. Reads no more than those."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import polars as pl

from holdfast.base.errors import BLOCKED, Stop
from holdfast.config.table import Table
from holdfast.tables.table.frames import Frames, open_frames
from holdfast.tables.table.times import NONE, times_of

_LOOKED_AT = 20_000  # rows
_VALUES = 1000  # looked at, of a column of texts
_NUMBERS = 0.5  # of the values that are there: a column of so many numbers is one of numbers
MISSING = ("", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "none", "?", "-")


_ODD_NUMBER = re.compile(r"[-+(]?\s*[$€£¥]?\s*[-+]?(\d+|\d{1,3}([.,' \u00a0\u202f]\d{3})+)([.,]\d+)?\s*[$€£¥%]?\)?")


@dataclass(frozen=True)
class Schema:
    """Names of the columns by what they are for. odd_numbers: of those of names, that look like numbers, a value.

    priced: the target is a number at each row, whatever is learned of it: how it changes within a horizon.
    """

    numbers: tuple[str, ...]
    categories: tuple[str, ...]
    target: str | None  # None: what is to be learned is not told
    kind: Literal["regression", "classification"]
    time: str | None
    group: str | None

    others: tuple[str, ...] = ()  # further columns of times: no features
    odd_numbers: Mapping[str, str] = field(default_factory=dict)
    priced: bool = False

    @property
    def wanted(self) -> list[str]:
        beside = [name for name in (self.target, self.time, self.group) if name]
        return list(dict.fromkeys([*self.numbers, *self.categories, *beside, *self.others]))


def open_all(names: Sequence[str]) -> list[Frames]:
    """Look at the columns of these files. Raises Stop(1) where they are not the same."""
    files = [open_frames(Path(name)) for name in names]
    first = files[0]
    for other in files[1:]:
        less, more = sorted({*first.names} - {*other.names}), sorted({*other.names} - {*first.names})
        if less or more:
            told = [f"{what} {', '.join(names[:6])}" for what, names in (("lacks", less), ("has besides", more)) if names]
            raise Stop(BLOCKED, f"{other.file} {' and '.join(told)}; {first.file} has {first.shown()}", "give files with the same columns")
    return files


def schema_of(frames: Frames, table: Table) -> Schema:
    """Return the schema of a table. Raises Stop(1) for a column that is not there, and where none is left to learn from."""
    asked = [table.target, *table.features, *table.ignore, *table.categories, *filter(None, (table.time, table.group))]
    if missing := [name for name in dict.fromkeys(asked) if name not in frames.names]:
        near = [close[0] for name in missing if (close := difflib.get_close_matches(name, frames.names, 1, 0.6))]
        hint = f"did you mean {', '.join(near)}?" if near else "correct the names under table"
        raise Stop(BLOCKED, f"{frames.file} has no column {', '.join(missing)}; it has {frames.shown()}", hint)
    aside = {*table.ignore, *filter(None, (table.time, table.group))} | (set() if table.horizon else {table.target})
    names = [name for name in (table.features or frames.names) if name not in aside]
    if not names:
        raise Stop(
            BLOCKED, f"{frames.file} has no column to learn from beside the target {table.target}", "add columns, or correct table.ignore"
        )
    wanted = list(dict.fromkeys([*names, table.target]))
    head = next(frames.chunks(wanted, _LOOKED_AT), None)
    if head is None or not len(head):
        raise Stop(BLOCKED, f"{frames.file} holds no row", "give a table with rows")
    named = {name for name in names if name in table.categories or not _is_numbers(head[name], name)}
    kind = table.kind if table.kind != "auto" else _kind(head[table.target], table)
    if table.kind == "auto" and kind == "classification" and (odd := _odd_number(head[table.target])):
        text = f"{frames.file}: the target {table.target} holds numbers that are written otherwise, such as {odd!r}"
        raise Stop(BLOCKED, text, "write them as 1500.5; or say that they are names with table.kind: classification")
    numbers = tuple(name for name in names if name not in named)
    categories = tuple(name for name in names if name in named)
    odd_numbers = {name: odd for name in categories if name not in table.categories and (odd := _odd_number(head[name]))}
    return Schema(numbers, categories, table.target, kind, table.time, table.group, (), odd_numbers, bool(table.horizon))


def found_schema(frames: Frames) -> Schema:
    """Guess what each column is where nothing is told: numbers, names, times. Raises Stop(1) where there is no row."""
    head = next(frames.chunks(list(frames.names), _LOOKED_AT), None)
    if head is None or not len(head):
        raise Stop(BLOCKED, f"{frames.file} holds no row", "give a table with rows")
    times = [name for name in frames.names if _is_times(head[name])]
    numbers = tuple(name for name in frames.names if name not in times and _is_numbers(head[name], name))
    names = tuple(name for name in frames.names if name not in times and name not in numbers)
    odd_numbers = {name: odd for name in names if (odd := _odd_number(head[name]))}
    return Schema(numbers, names, None, "regression", times[0] if times else None, None, tuple(times[1:]), odd_numbers)


def _odd_number(values: pl.Series) -> str | None:
    """Return a value of a column of texts, most of which are numbers with a comma, a currency or a percent sign; None of any other."""
    if values.dtype != pl.String:
        return None
    texts = values.str.strip_chars().drop_nulls()
    there = texts.filter(~texts.is_in(MISSING)).head(_VALUES)
    numbers = there.filter([bool(_ODD_NUMBER.fullmatch(text)) for text in there])
    odd = numbers.filter(numbers.cast(pl.Float64, strict=False).is_null())
    return odd[0] if len(odd) and len(numbers) >= _NUMBERS * len(there) else None


def _is_times(values: pl.Series) -> bool:
    if values.dtype.is_temporal():
        return True
    if values.dtype != pl.String or _is_numbers(values, values.name):
        return False
    there = values.drop_nulls().head(_VALUES)
    try:
        return bool(len(there)) and bool((times_of(there, "UTC").at != NONE).mean() >= _NUMBERS)
    except Stop:  # times, of a form that is refused when they are read
        return True


def _kind(target: pl.Series, table: Table) -> Literal["regression", "classification"]:
    if table.horizon:
        return "classification" if table.loss == "cross-entropy" else "regression"
    numbers = _is_numbers(target, table.target) and target.dtype != pl.Boolean and table.loss != "cross-entropy"
    return "regression" if numbers else "classification"


def _is_numbers(values: pl.Series, name: str) -> bool:
    if values.dtype.is_nested() or values.dtype in (pl.Binary, pl.Object):
        return False
    if values.dtype.is_numeric() or values.dtype == pl.Boolean:
        return True
    if values.dtype.is_temporal():
        raise Stop(BLOCKED, f"the column {name} holds times", "name it as table.time, or leave it out with table.ignore")
    texts = values.cast(pl.String).str.strip_chars()
    there = texts.filter(texts.is_not_null() & ~texts.is_in(MISSING))
    return bool(there.cast(pl.Float64, strict=False).is_not_null().sum() >= _NUMBERS * len(there))
