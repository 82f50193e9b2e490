"""Means with intervals that do not promise more than neighbouring rows hold. Pure, numpy alone.

Rows near each other are alike; so the interval is of the means of blocks of rows, Student's t over the blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

Verdict: TypeAlias = Literal["better", "worse", "cannot_tell"]
_BLOCKS = 30
_FEWEST = 5  # blocks below which no interval is told, and rows of a block
# Student's t for 95 %, by degrees of freedom from 4 to 29; from there on by the first terms of its expansion around the normal's 1.96
_T: tuple[float, ...] = (2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120)
_T += (2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045)


def blocks_of(values: npt.NDArray[np.float64], shared: int = 0) -> list[float]:
    """Return the means of at most 30 stretches of rows, in their order; none where there are too few rows.

    shared: neighbouring rows that were measured on the same events, as those within one horizon; a stretch has three times as many.
    """
    count = min(_BLOCKS, len(values) // max(_FEWEST, 3 * shared))
    return [float(block.mean()) for block in np.array_split(values, count)] if count >= _FEWEST else []


def interval(values: npt.NDArray[np.float64], shared: int = 0) -> dict[str, Any]:
    """Return {mean, interval: [low, high] of 95 %, null where there are too few rows, blocks: their means}. shared: as in `blocks_of`."""
    blocks = blocks_of(values, shared)
    return {"mean": float(values.mean()) if len(values) else None, "interval": reach(blocks), "blocks": blocks}


def interval_of_groups(values: npt.NDArray[np.float64], group: npt.NDArray[np.int32]) -> dict[str, Any]:
    """Return the same where rows of one group are alike, wherever they stand: of at most 30 parts of whole groups.

    blocks: what each part adds to the mean (the jackknife's pseudo-values), which for parts of one size is its own mean.
    """
    names, of = np.unique(group, return_inverse=True)
    count = min(_BLOCKS, len(names))
    if count < _FEWEST:
        return {"mean": float(values.mean()) if len(values) else None, "interval": None, "blocks": []}
    part = (np.arange(len(names)) * count // len(names))[of]
    sums, rows = np.bincount(part, values), np.bincount(part)
    mean, without = sums.sum() / rows.sum(), (sums.sum() - sums) / (rows.sum() - rows)
    blocks = (count * mean - (count - 1) * without).tolist()
    return {"mean": float(mean), "interval": reach(blocks), "blocks": blocks}


def reach(means: Sequence[float]) -> list[float] | None:
    """Compute the interval of 95 % of a mean, from the means of blocks; None where there are too few."""
    if len(means) < _FEWEST:
        return None
    array = np.array(means)
    free = len(means) - 1
    t = _T[free - 4] if free - 4 < len(_T) else 1.96 + 2.37 / free
    half = t * float(array.std(ddof=1)) / math.sqrt(len(means))
    return [float(array.mean() - half), float(array.mean() + half)]


def verdict(found: list[float] | None) -> Verdict:
    """Return the verdict on a gain from its interval."""
    if found is None:
        return "cannot_tell"
    return "better" if found[0] > 0 else "worse" if found[1] < 0 else "cannot_tell"
