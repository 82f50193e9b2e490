"""Rows that hang together, by links between two of them. Numbers in, numbers out."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
Links = tuple[Numbers, Numbers]  # one[i] hangs together with two[i]


def links_of_equal(keys: Numbers, rows: Numbers) -> Links:
    """Return neighbours among `rows` whose keys are equal. keys: int64 [all rows]."""
    order = rows[np.argsort(keys[rows], kind="stable")]
    same = keys[order[1:]] == keys[order[:-1]]
    return order[:-1][same], order[1:][same]


def joined(count: int, links: list[Links]) -> Numbers:
    """Return for each of `count` rows the least of those it hangs together with, itself where it stands alone. int64 [count]."""
    one, two = (np.concatenate([np.zeros(0, np.int64), *(link[side] for link in links)]) for side in (0, 1))
    first = np.arange(count)
    while True:
        left, right = first[one], first[two]
        low, high = np.minimum(left, right), np.maximum(left, right)
        if (low == high).all():
            return first
        np.minimum.at(first, high, low)
        while not np.array_equal(first[first], first):
            first = first[first]
