"""What changed between two versions of a set of rows. Keys in, masks out; pure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from holdfast.data.duplicates.keys import RowKeys
from holdfast.data.duplicates.seen import Keys


class DataDifference(NamedTuple):
    """[rows of A] and [rows of B]: what has become of each row of A (0 same, 1 alike, 2 answer changed, 3 gone), where each of B comes
    from (3: new); whether the rows that are the same stand in another order."""

    before: npt.NDArray[np.int8]
    after: npt.NDArray[np.int8]
    moved: bool


SAME, ALIKE, CHANGED, ALONE = range(4)


def difference(a: RowKeys, b: RowKeys) -> DataDifference:
    """Match rows one to one: by value, then by texts but for case and spaces, then by prompt."""
    before, after = np.full(len(a), ALONE, np.int8), np.full(len(b), ALONE, np.int8)
    moved = False
    for kind, one, two in ((SAME, a.values, b.values), (ALIKE, a.pairs, b.pairs), (CHANGED, a.prompts, b.prompts)):
        left, right = np.flatnonzero((before == ALONE) & (one != 0)), np.flatnonzero((after == ALONE) & (two != 0))
        first, second = _numbered(one[left]), _numbered(two[right])
        in_both, in_both_too = np.isin(first, second), np.isin(second, first)
        before[left[in_both]], after[right[in_both_too]] = kind, kind
        if kind == SAME:
            moved = not np.array_equal(first[in_both], second[in_both_too])
    return DataDifference(before, after, moved)


def _numbered(keys: Keys) -> Keys:
    """Tell equal keys apart by how often they stood before, so that the second of two equal rows matches a second one only."""
    order = np.argsort(keys, kind="stable")
    sorted_keys = keys[order]
    begins = np.concatenate([[True], sorted_keys[1:] != sorted_keys[:-1]]) if len(keys) else np.zeros(0, np.bool_)
    at = np.arange(len(keys))
    times = np.zeros(len(keys), np.uint64)
    times[order] = (at - np.maximum.accumulate(np.where(begins, at, 0))).astype(np.uint64)
    numbered: Keys = (keys.view(np.uint64) + times * np.uint64(0x9E3779B97F4A7C15)).view(np.int64)
    return numbered


def kinds(marks: npt.NDArray[np.int8]) -> list[int]:
    """Count the rows of each kind, in the order of the kinds' numbers."""
    found: list[int] = np.bincount(marks, minlength=4).tolist()
    return found
