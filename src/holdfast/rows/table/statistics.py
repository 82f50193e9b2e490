"""What is counted of a table: scaling from the training part alone, and the facts that checks look at. In chunks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.core.cards.table_check import ColumnFacts, TableFacts
from holdfast.rows.table.intake import Raw
from holdfast.rows.table.schema import Schema
from holdfast.rows.table.table_set import HELD_OUT, TRAINING

CHUNK = 65_536  # rows
_CELLS = 8_000_000  # of the sample in which columns are compared
_LAGS = (1, 2, 3)
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


def chunks(rows: Array) -> Iterator[Array]:
    for start in range(0, len(rows), CHUNK):
        yield rows[start : start + CHUNK]


def moments(values: Array, rows: Array) -> Moments:
    """Of `rows` of [all rows, columns]; chunks are joined by Chan, Golub & LeVeque's update."""
    width = values.shape[1]
    total = Moments(np.zeros(width), np.zeros(width), np.zeros(width), np.full(width, np.inf), np.full(width, -np.inf), np.zeros(width))
    for some in chunks(rows):
        block = np.asarray(values[some], np.float64)
        there = ~np.isnan(block)
        count = there.sum(axis=0).astype(np.float64)
        filled = np.where(there, block, 0.0)
        mean = filled.sum(axis=0) / np.maximum(count, 1)
        spread = (np.where(there, block - mean, 0.0) ** 2).sum(axis=0)
        apart, both = mean - total.mean, np.maximum(total.count + count, 1)
        total.spread += spread + apart**2 * total.count * count / both
        total.mean += apart * count / both
        total.count += count
        total.missing += len(some) - count
        total.low = np.minimum(total.low, np.where(there, block, np.inf).min(axis=0, initial=np.inf))
        total.high = np.maximum(total.high, np.where(there, block, -np.inf).max(axis=0, initial=-np.inf))
    return total


def facts_of(raw: Raw, schema: Schema, part: Array, target: Array, found: Moments, horizon: int | None) -> TableFacts:
    """What the checks of tables look at. target: what is learned, of each row (NaN where it is unknown)."""
    training = np.flatnonzero(part == TRAINING)
    sample = training[: max(1000, _CELLS // max(1, len(schema.numbers)))]
    if schema.time:
        sample = sample[np.argsort(raw.arrays["time"][sample], kind="stable")]
    columns = _numbers(raw, schema, sample, target, found, horizon)
    columns += [_names(raw, name, at, training) for at, name in enumerate(schema.categories)]
    classes: dict[int, dict[str, int]] = {TRAINING: {}, HELD_OUT: {}}
    if schema.kind == "classification" and not horizon:
        for which in classes:
            counts = Counter(target[part == which].astype(int).tolist())
            classes[which] = {raw.classes[code]: counts[code] for code in sorted(counts)}
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
    seen: dict[bytes, str] = {}
    columns = []
    for at, name in enumerate(schema.numbers):
        column = values[:, at]
        same = seen.setdefault(column.tobytes(), name)
        match, lag = _match(column, wanted, price if name != schema.target else None, bool(schema.time), horizon)
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
            )
        )
    return columns


def _names(raw: Raw, name: str, at: int, training: Array) -> ColumnFacts:
    missing = sum(int((raw.arrays["codes"][some, at] < 0).sum()) for some in chunks(training)) if name not in raw.uncounted else 0
    return ColumnFacts(
        name=name, kind="category", rows=len(training), distinct=len(raw.names[name]), missing=missing, uncounted=name in raw.uncounted
    )


def _match(column: Array, target: Array, price: Array | None, in_time: bool, horizon: int | None) -> tuple[float, int]:
    """(largest share of rows where the column is the target, how many rows later that target is)."""
    lags = (0, *_LAGS) if in_time else (0,)
    found = [(_equal(column[: len(column) - lag], target[lag:]), lag) for lag in lags]
    if price is not None and horizon:
        found += [(_equal(column[: len(column) - lag], price[lag:]), lag) for lag in sorted({*_LAGS, horizon})]
    return max(found, key=lambda one: (one[0], -one[1]))


def _equal(one: Array, other: Array) -> float:
    both = ~(np.isnan(one) | np.isnan(other))
    if both.sum() < 10:
        return 0.0
    one, other = one[both], other[both]
    if other.min() == other.max():
        return 0.0
    return float(np.isclose(one, other, rtol=1e-9, atol=0.0).mean())


def _correlation(one: Array, other: Array) -> float:
    both = ~(np.isnan(one) | np.isnan(other))
    if both.sum() < 10:
        return 0.0
    one, other = one[both] - one[both].mean(), other[both] - other[both].mean()
    size = float(np.sqrt((one**2).sum() * (other**2).sum()))
    return abs(float((one * other).sum())) / size if size > 0 else 0.0


def _times(file: Array, time: Array) -> dict[str, Any]:
    """Facts of the order of rows within their files."""
    apart = np.diff(time)[np.diff(file) == 0] / 1e6
    order = np.lexsort((time, file))
    steps = np.diff(time[order])[np.diff(file[order]) == 0] / 1e6
    ahead = steps[steps > 0]
    usual = float(np.median(ahead)) if len(ahead) else None
    return {
        "unordered": int((apart < 0).sum()),
        "repeated_times": int((steps == 0).sum()),
        "usual_step_s": usual,
        "missing_times": int((ahead > 1.5 * usual).sum()) if usual else 0,
    }
