"""Which held-out rows of a table stand in training, too, in every column. Looks at values alone."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from holdfast.data.token_set.overlap import mixed
from holdfast.tables.table.intake import Raw
from holdfast.tables.table.statistics import chunks
from holdfast.tables.table.table_set import HELD_OUT, TRAINING

_STEP = np.uint64(0x9E3779B97F4A7C15)
_SAMPLE = 20_000  # rows in which the values of a column are counted
_FEW = 10  # combinations of values a row, below which rows are equal by chance
Array = npt.NDArray[Any]


class Repeats(NamedTuple):
    """rows: numbers of the held-out rows that equal a training row; held_out: of so many; combinations: of the features' values.

    by_chance: these are so few that rows are equal without being one row twice.
    """

    rows: Array
    held_out: int
    combinations: int
    by_chance: bool


def repeats_of(raw: Raw, part: Array, target: Array) -> Repeats:
    """Return the held-out rows that equal a training row in features, target, time and group. part, target: [rows]."""
    held = np.flatnonzero(part == HELD_OUT)
    if not len(held) or raw.uncounted:
        return Repeats(held[:0], len(held), 0, by_chance=False)
    keys = _keys(raw, target)
    rows = held[np.isin(keys[held], keys[part == TRAINING])]
    combinations = _combinations(raw, part) if len(rows) else 0
    return Repeats(rows, len(held), combinations, combinations < _FEW * int((part == TRAINING).sum()))


def _keys(raw: Raw, target: Array) -> Array:
    """Hash rows, uint64 [rows]."""
    arrays, keys = raw.arrays, np.zeros(len(target), np.uint64)
    for some in chunks(len(target)):
        numbers = np.column_stack([arrays["numbers"][some], target[some], arrays["codes"][some], arrays["group"][some]]).astype(np.float64)
        bits = np.where(np.isnan(numbers), np.nan, numbers + 0.0).view(np.uint64)  # -0 is 0, each NaN the same one
        bits = np.column_stack([bits, arrays["time"][some].astype(np.int64).view(np.uint64)])
        places = np.arange(1, bits.shape[1] + 1, dtype=np.uint64) * _STEP
        keys[some] = mixed(mixed(bits) + places).sum(axis=1, dtype=np.uint64)
    return keys


def _combinations(raw: Raw, part: Array) -> int:
    """Count the rows of features that the values of the columns could make; a column of times makes each row its own."""
    some = np.flatnonzero(part == TRAINING)[:_SAMPLE]
    columns = [raw.arrays["time"][some], *raw.arrays["numbers"][some].T, *raw.arrays["codes"][some].T]
    return math.prod(len(np.unique(column)) for column in columns)
