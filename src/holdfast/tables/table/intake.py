"""The first pass over a table: every row kept or rejected with its reason, what is kept written down as raw numbers. Holds one chunk."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import orjson
import polars as pl

from holdfast.base.errors import BLOCKED, Stop
from holdfast.base.files import Json
from holdfast.data.duplicates.seen import SeenKeys
from holdfast.tables.table.frames import LINE, RAGGED, Frames, as_text
from holdfast.tables.table.schema import MISSING, Schema
from holdfast.tables.table.times import NONE, times_of

_CELLS, _ROWS = 500_000, 50_000  # of a chunk, at most
_QUOTED = 60  # characters of a value
Array = npt.NDArray[Any]
REASONS = {
    "too_many_fields": "the line has more fields than the header names",
    "time_unreadable": "the column of times holds no time",
    "target_missing": "the target has no value",
    "target_not_a_number": "the target is a text, numbers are to be learned",
    "infinite_number": "a number is infinite",
    "text_in_number": "a text in a column of numbers",
    "value_missing": "a number is missing, and table.missing is reject",
}
_KINDS: dict[str, np.dtype[Any]] = {"file": np.dtype("<i4"), "line": np.dtype("<i8"), "time": np.dtype("<i8"), "target": np.dtype("<f8")}
_KINDS |= {"numbers": np.dtype("<f8"), "codes": np.dtype("<i4"), "group": np.dtype("<i4")}


@dataclass
class Raw:
    """What the first pass wrote down, mapped, and what it counted. names: the values of each column of names, by code.

    uncounted: columns of names with too many values, whose codes were not kept; repeated: kept rows that stood there before; folder: where
    further arrays can be written.
    """

    arrays: dict[str, Array]
    names: dict[str, list[str]]
    classes: list[str]
    read: int
    by_reason: Counter[str]
    counts: dict[str, Counter[str]]
    zoned: int
    plain: int
    first_reject: str | None
    uncounted: frozenset[str]
    repeated: int
    folder: Path


@dataclass
class _Codes:
    """Numbers for names, in the order they come."""

    of: dict[str, int] = field(default_factory=dict)

    def take(self, values: pl.Series) -> npt.NDArray[np.int32]:
        """Return a number for each value; -1 where there is none."""
        for name in values.unique(maintain_order=True).drop_nulls().to_list():
            self.of.setdefault(name, len(self.of))
        return values.replace_strict(self.of, default=-1, return_dtype=pl.Int32).fill_null(-1).to_numpy()


class Intake:
    """Takes the chunks of all files in order. folder: for what it writes down; reject: is given each row that is rejected.

    strict: raise Stop(1) at a column of names with too many values, instead of counting it no further. keep: is given all columns of each
    chunk's kept rows.
    """

    def __init__(
        self, schema: Schema, missing: str, most_names: int, folder: Path, reject: Callable[[Json], None],
        strict: bool = True, keep: Callable[[pl.DataFrame], None] | None = None,
    ) -> None:  # fmt: skip
        self.schema, self.missing, self.most_names, self.reject = schema, missing, most_names, reject
        self.strict, self.keep = strict, keep
        self.uncounted: set[str] = set()
        self.seen, self.repeated = SeenKeys(), 0
        self.folder = folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        self.handles: dict[str, BinaryIO] = {name: (folder / name).open("wb") for name in _KINDS}
        self.codes = {name: _Codes() for name in schema.categories}
        self.classes, self.groups = _Codes(), _Codes()
        self.read = self.zoned = self.plain = 0
        self.by_reason: Counter[str] = Counter()
        self.counts = {name: Counter[str]() for name in schema.numbers}
        self.first_reject: str | None = None

    def take(self, frames: Frames, number: int) -> None:
        """Take all rows of the file of this number."""
        rows = max(1, min(_ROWS, _CELLS // len(frames.names)))
        for frame in frames.chunks(list(frames.names) if self.keep else self.schema.wanted, rows):
            self._chunk(frame, str(frames.file), number)

    def done(self) -> Raw:
        """Return all rows taken, memory-mapped. `close` removes them."""
        for handle in self.handles.values():
            handle.close()
        shapes = {"numbers": (-1, len(self.schema.numbers)), "codes": (-1, len(self.schema.categories))}
        rows = (self.folder / "line").stat().st_size // 8
        arrays: dict[str, Array] = {}
        for name, kind in _KINDS.items():
            empty = not (self.folder / name).stat().st_size
            flat = np.empty(0, kind) if empty else np.memmap(self.folder / name, kind, "r")
            shape = shapes.get(name, (-1,))
            arrays[name] = flat.reshape(rows, shape[1]) if len(shape) == 2 else flat
        names = {name: list(codes.of) for name, codes in self.codes.items()}
        return Raw(arrays, names, list(self.classes.of), self.read, self.by_reason, self.counts, self.zoned, self.plain, self.first_reject,
                   frozenset(self.uncounted), self.repeated, self.folder)  # fmt: skip

    def close(self) -> None:
        for handle in self.handles.values():
            handle.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _chunk(self, frame: pl.DataFrame, file: str, number: int) -> None:
        schema, count = self.schema, len(frame)
        self.read += count
        reason = np.full(count, -1, np.int8)
        column = np.full(count, -1, np.int32)
        names = list(REASONS)

        def mark(name: str, where: Array, of: str | None = None) -> None:
            new = where & (reason < 0)
            reason[new], column[new] = names.index(name), -1 if of is None else frame.columns.index(of)

        mark("too_many_fields", frame[RAGGED].is_not_null().to_numpy())
        time = np.zeros(count, np.int64)
        if schema.time:
            time, zoned, plain = times_of(frame[schema.time], "UTC")
            self.zoned, self.plain = self.zoned + zoned, self.plain + plain
            mark("time_unreadable", time == NONE, schema.time)
        target = self._target(frame[schema.target], mark) if schema.target else np.zeros(count)
        numbers = np.empty((count, len(schema.numbers)))
        for at, name in enumerate(schema.numbers):
            numbers[:, at], texts = _numbers(frame[name])
            infinite = np.isinf(numbers[:, at])
            missing = np.isnan(numbers[:, at]) & ~texts
            self.counts[name].update({"texts": int(texts.sum()), "infinite": int(infinite.sum()), "missing": int(missing.sum())})
            mark("text_in_number", texts, name)
            mark("infinite_number", infinite, name)
            if self.missing == "reject":
                mark("value_missing", missing, name)
        good = reason < 0
        self._reject(frame, reason, column, file)
        codes = np.empty((count, len(schema.categories)), np.int32)
        for at, name in enumerate(schema.categories):
            codes[:, at] = self._codes(name, frame[name])
        group = self.groups.take(_names(frame[schema.group])) if schema.group else np.zeros(count, np.int32)
        hashes = frame.select(schema.wanted).hash_rows(seed=1).to_numpy().view(np.int64)[good]
        self.repeated += int(self.seen.add(hashes).sum())
        self._write({"file": np.full(count, number), "line": frame[LINE].to_numpy(), "time": time, "target": target}, good)
        self._write({"numbers": numbers, "codes": codes, "group": group}, good)
        if self.keep:
            self.keep(frame.filter(pl.Series(good)).drop(LINE, RAGGED))

    def _codes(self, name: str, values: pl.Series) -> Array:
        """Return the codes of a column of names; -1 of one that has too many values."""
        if name in self.uncounted:
            return np.full(len(values), -1, np.int32)
        codes = self.codes[name].take(_names(values))
        if len(self.codes[name].of) > 8 * self.most_names:
            if self.strict:
                raise _too_many(name, len(self.codes[name].of), self.most_names)
            self.uncounted.add(name)
        return codes

    def _target(self, values: pl.Series, mark: Callable[[str, Array, str], None]) -> Array:
        if self.schema.kind == "regression" or self.schema.priced:
            found, texts = _numbers(values)
            mark("target_not_a_number", texts | np.isinf(found), values.name)
            mark("target_missing", np.isnan(found), values.name)
            return found
        codes = self.classes.take(_names(values)).astype(np.float64)
        mark("target_missing", codes < 0, values.name)
        return codes

    def _write(self, arrays: dict[str, Array], good: Array) -> None:
        for name, values in arrays.items():
            self.handles[name].write(np.ascontiguousarray(values[good], _KINDS[name]).tobytes())

    def _reject(self, frame: pl.DataFrame, reason: Array, column: Array, file: str) -> None:
        """Reject rows. column: number of the column that a row is rejected for; -1: for none."""
        bad, names = np.flatnonzero(reason >= 0), list(REASONS)
        self.by_reason.update(names[which] for which in reason[bad])
        rows = frame[bad.tolist()].iter_rows(named=True) if len(bad) else ()
        for row, which, of in zip(rows, reason[bad], column[bad], strict=True):
            line, name, ragged = row.pop(LINE), names[which], row.pop(RAGGED)
            detail = REASONS[name]
            if of >= 0:
                value = row[frame.columns[of]]
                detail += f": {frame.columns[of]}" + ("" if value is None else f" is {str(value)[:_QUOTED]!r}")
            raw = ragged or orjson.dumps(row, default=str).decode("utf-8", "replace")
            self.first_reject = self.first_reject or f"{file}:{line}: {detail}"
            self.reject({"file": file, "line": line, "reason": name, "detail": detail, "raw": raw})


def _too_many(name: str, count: int, most: int) -> Stop:
    text = f"the column {name} has {count:,} different texts or more; a column of names may have {most:,} (table.max_categories)"
    return Stop(BLOCKED, text, "leave it out with table.ignore; a column of times is named under table.time")


def _numbers(values: pl.Series) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Return (numbers, NaN where there is none; mask of the places with a text instead)."""
    if values.dtype.is_numeric() or values.dtype == pl.Boolean:
        return values.cast(pl.Float64).fill_null(np.nan).to_numpy(), np.zeros(len(values), np.bool_)
    texts = values.cast(pl.String).str.strip_chars()
    found = texts.cast(pl.Float64, strict=False)
    strange = found.is_null() & texts.is_not_null() & ~texts.is_in(MISSING).fill_null(value=True)
    return found.fill_null(np.nan).to_numpy(), strange.to_numpy()


def _names(values: pl.Series) -> pl.Series:
    """Return texts, null where there is none."""
    texts = as_text(values).str.strip_chars()
    return texts.set(texts == "", None)
