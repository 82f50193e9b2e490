"""What is counted of a table: scaling from the training part alone, and the facts that checks look at. In chunks."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.book.kinds.table_check import ColumnFacts, TableFacts
from holdfast.tables.table.intake import Raw
from holdfast.tables.table.schema import Schema
from holdfast.tables.table.table_set import HELD_OUT, TRAINING

CHUNK = 65_536  # rows
_CELLS = 2_000_000  # of the sample in which columns are compared
_LAGS = (1, 2, 3)
_FEWEST = 10  # rows from which something is said of a column
_STEPS = 1 << 20  # rows whose distances say what is usual
Array = npt.NDArray[Any]


@dataclass
class Moments:
    """Mean, population deviation, extremes and missing values of columns; NaN does not count."""

    count: Array
    mean: Array
    spread: Array
    low: Array
    high: Array
    missing: Array

    @property
    def deviation(self) -> Array:
        return np.sqrt(self.spread / np.maximum(self.count, 1))


def chunks(rows: int) -> Iterator[slice]:
    for start in range(0, rows, CHUNK):
        yield slice(start, min(start + CHUNK, rows))


def moments(values: Array, chosen: Array) -> Moments:
    """Compute the moments of the rows `chosen` (a mask) of [rows, columns]; chunks are joined by Chan, Golub & LeVeque's update."""
    width = values.shape[1]
    total = Moments(np.zeros(width), np.zeros(width), np.zeros(width), np.full(width, np.inf), np.full(width, -np.inf), np.zeros(width))
    for some in chunks(len(values)):
        block = np.asarray(values[some], np.float64)[chosen[some]]
        there = ~np.isnan(block)
        count = there.sum(axis=0).astype(np.float64)
        filled = np.where(there, block, 0.0)
        mean = filled.sum(axis=0) / np.maximum(count, 1)
        spread = (np.where(there, block - mean, 0.0) ** 2).sum(axis=0)
        apart, both = mean - total.mean, np.maximum(total.count + count, 1)
        total.spread += spread + apart**2 * total.count * count / both
        total.mean += apart * count / both
        total.count += count
        total.missing += len(block) - count
        total.low = np.minimum(total.low, np.where(there, block, np.inf).min(axis=0, initial=np.inf))
        total.high = np.maximum(total.high, np.where(there, block, -np.inf).max(axis=0, initial=-np.inf))
    return total


def facts_of(raw: Raw, schema: Schema, part: Array, target: Array, found: Moments, horizon: int | None) -> TableFacts:
    """Return what the checks of tables look at. target: what is learned, of each row (NaN where it is unknown)."""
    sample = _first_of(part, max(1000, _CELLS // max(1, len(schema.numbers))))
    training = int((part == TRAINING).sum())
    if schema.time:
        series = [raw.arrays[name][sample] for name in ("time", "group", "file")]  # each stands by itself: what is later is later in it
        sample = sample[np.lexsort(series)]
    columns = _numbers(raw, schema, sample, target, found, horizon)
    columns += [_names(raw, schema, name, at, part, training) for at, name in enumerate(schema.categories)]
    classes: dict[int, dict[str, int]] = {TRAINING: {}, HELD_OUT: {}}
    if schema.kind == "classification" and not horizon:
        for which in classes:
            classes[which] = {raw.classes[code]: count for code, count in counts_of(target, part == which).items()}
    return TableFacts(
        columns=columns,
        rows=len(target),
        repeated_rows=raw.repeated,
        unreadable_times=raw.by_reason["time_unreadable"],
        zoned=raw.zoned,
        plain=raw.plain,
        classes=classes[TRAINING],
        held_out_classes=classes[HELD_OUT],
        **(_times(raw.arrays["file"], raw.arrays["time"]) if schema.time else {}),
    )


def _numbers(raw: Raw, schema: Schema, sample: Array, target: Array, found: Moments, horizon: int | None) -> list[ColumnFacts]:
    values = np.asarray(raw.arrays["numbers"][sample], np.float64)
    wanted, price = target[sample], np.asarray(raw.arrays["target"][sample], np.float64) if horizon else None
    series = raw.arrays["file"][sample] * np.int64(1 << 32) + raw.arrays["group"][sample] if schema.time else None
    seen: dict[bytes, str] = {}  # by a digest: a key of all bytes would hold the sample again
    columns = []
    for at, name in enumerate(schema.numbers):
        column = values[:, at]
        same = seen.setdefault(hashlib.sha256(column.tobytes()).digest(), name)
        match, lag = _match(column, wanted, price if name != schema.target else None, series, horizon)
        counts = raw.counts[name]
        columns.append(
            ColumnFacts(
                name=name,
                rows=int(found.count[at] + found.missing[at]),
                missing=int(found.missing[at]),
                infinite=counts["infinite"],
                texts=counts["texts"],
                constant=bool(found.low[at] >= found.high[at]),
                same_as=same if same != name else None,
                target_match=match,
                target_lag=lag,
                target_correlation=_correlation(column, wanted),
                counts_rows=_counts_rows(column, raw.arrays["line"][sample], raw.arrays["file"][sample]),
            )
        )
    return columns


def _counts_rows(column: Array, line: Array, file: Array) -> bool:
    """True if a column goes up by one from line to line of each file."""
    apart = column - line
    _, first, of = np.unique(file, return_index=True, return_inverse=True)
    return len(column) >= _FEWEST and bool((apart == apart[first][of]).all())


def counts_of(codes: Array, chosen: Array) -> dict[int, int]:
    """Count each whole number in the rows `chosen` (a mask); in ascending order."""
    total: Counter[int] = Counter()
    for some in chunks(len(codes)):
        values, counts = np.unique(codes[some][chosen[some]], return_counts=True)
        total.update(dict(zip(values.astype(int).tolist(), counts.tolist(), strict=True)))
    return dict(sorted(total.items()))


def _first_of(part: Array, most: int) -> Array:
    """Return the first training rows, at most `most`."""
    found, count = [], 0
    for some in chunks(len(part)):
        rows = some.start + np.flatnonzero(part[some] == TRAINING)
        found.append(rows[: most - count])
        count += len(found[-1])
        if count == most:
            break
    return np.concatenate(found)


def _names(raw: Raw, schema: Schema, name: str, at: int, part: Array, training: int) -> ColumnFacts:
    missing = 0 if name in raw.uncounted else counts_of(raw.arrays["codes"][:, at], part == TRAINING).get(-1, 0)
    return ColumnFacts(
        name=name,
        kind="category",
        rows=training,
        distinct=len(raw.names[name]),
        missing=missing,
        uncounted=name in raw.uncounted,
        odd_number=schema.odd_numbers.get(name),
    )


def _match(column: Array, target: Array, price: Array | None, series: Array | None, horizon: int | None) -> tuple[float, int]:
    """Return (largest share of rows where the column is the target, how many rows later that target is). series: of each row, in time."""

    def equal(later: Array, lag: int) -> tuple[float, int]:
        before = column[: max(0, len(column) - lag)]
        return _equal(before if series is None else np.where(series[: len(before)] == series[lag:], before, np.nan), later[lag:]), lag

    found = [equal(target, lag) for lag in ((0,) if series is None else (0, *_LAGS))]
    if price is not None and horizon:
        found += [equal(price, lag) for lag in sorted({*_LAGS, horizon})]
    return max(found, key=lambda one: (one[0], -one[1]))


def _equal(one: Array, other: Array) -> float:
    both = ~(np.isnan(one) | np.isnan(other))
    if both.sum() < _FEWEST:
        return 0.0
    one, other = one[both], other[both]
    if other.min() == other.max():
        return 0.0
    return float(np.isclose(one, other, rtol=1e-9, atol=0.0).mean())


def _correlation(one: Array, other: Array) -> float:
    both = ~(np.isnan(one) | np.isnan(other))
    if both.sum() < _FEWEST:
        return 0.0
    one, other = one[both] - one[both].mean(), other[both] - other[both].mean()
    size = float(np.sqrt((one**2).sum() * (other**2).sum()))
    return abs(float((one * other).sum())) / size if size > 0 else 0.0


def in_order(file: Array, time: Array) -> bool:
    """True if no row is older than the one before it in its file."""
    return not any((apart < 0).any() for apart in _apart(file, time))


def _apart(file: Array, time: Array) -> Iterator[Array]:
    """Yield the seconds between successive rows of one file, in chunks."""
    for some in chunks(len(time)):
        both = slice(some.start, some.stop + 1)
        yield np.diff(time[both])[np.diff(file[both]) == 0] / 1e6


def _times(file: Array, time: Array) -> dict[str, Any]:
    """Return facts of the order of rows within their files."""
    unordered = sum(int((apart < 0).sum()) for apart in _apart(file, time))
    if unordered:
        order = np.lexsort((time, file))
        file, time = file[order], time[order]
    first = np.concatenate([*_apart(file[:_STEPS], time[:_STEPS]), np.empty(0)])
    usual = float(np.median(first[first > 0])) if (first > 0).any() else None
    return {
        "unordered": unordered,
        "repeated_times": sum(int((apart == 0).sum()) for apart in _apart(file, time)),
        "usual_step_s": usual,
        "missing_times": sum(int((apart > 1.5 * usual).sum()) for apart in _apart(file, time)) if usual else 0,
    }
