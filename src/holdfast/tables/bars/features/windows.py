"""Sums, extremes and moments over the last bars, in numpy. No bar sees a later one, and no result depends on where an array begins.

A window of w bars is joined from windows of powers of two: log2(w) passes over the array, added in one fixed order. Running sums would
be as fast, but their rounding depends on all that came before, so that the same bar would have other bits in another chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Column: TypeAlias = npt.NDArray[np.float64]
Whole: TypeAlias = npt.NDArray[np.int64]
_Join: TypeAlias = Callable[[Column, Column], Column]


def shifted(values: Column, bars: int) -> Column:
    """Shift the values by `bars` bars to later ones; NaN where there is none."""
    out = np.full_like(values, np.nan)
    if bars < len(values):
        out[bars:] = values[: len(values) - bars] if bars else values
    return out


def _joined(values: Column, width: int, join: _Join) -> Column:
    """Apply `join` to the `width` newest values at each place; NaN where there are fewer, or where one of them is NaN."""
    block, size, done = values, 1, 0
    out: Column | None = None
    while True:
        if width & size:
            out = block if out is None else join(shifted(block, done), out)
            done += size
        if 2 * size > width:
            assert out is not None
            return out
        block = join(shifted(block, size), block)
        size *= 2


def window_sum(values: Column, width: int) -> Column:
    """Sum of the `width` newest values."""
    return _joined(values, width, np.add)


def window_mean(values: Column, width: int) -> Column:
    """Return the mean of the `width` newest values."""
    return window_sum(values, width) / width


def window_max(values: Column, width: int) -> Column:
    """Return the largest of the `width` newest values."""
    return _joined(values, width, np.maximum)


def window_min(values: Column, width: int) -> Column:
    """Return the smallest of the `width` newest values."""
    return _joined(values, width, np.minimum)


def window_moments(values: Column, width: int) -> tuple[Column, Column]:
    """Return (mean, population standard deviation) of the `width` newest values.

    Joined by Chan, Golub & LeVeque's update (1979), which does not subtract large squares from each other.
    """
    mean, spread, size, done = values, np.where(np.isnan(values), np.nan, 0.0), 1, 0
    out: tuple[Column, Column] | None = None
    while True:
        if width & size:
            out = (mean, spread) if out is None else _merged(shifted(mean, done), shifted(spread, done), size, *out, done)
            done += size
        if 2 * size > width:
            assert out is not None
            return out[0], np.sqrt(out[1] / width)
        mean, spread = _merged(shifted(mean, size), shifted(spread, size), size, mean, spread, size)
        size *= 2


def _merged(mean: Column, spread: Column, count: int, mean_2: Column, spread_2: Column, count_2: int) -> tuple[Column, Column]:
    """Merge the means and the sums of squared deviations of two sets."""
    total, apart = count + count_2, mean_2 - mean
    return mean + apart * (count_2 / total), spread + spread_2 + apart * apart * (count * count_2 / total)


def by_session(values: Column, starts: Whole, running: Callable[[Column], Column]) -> Column:
    """Apply a running operation (np.cumsum, np.maximum.accumulate) that begins anew where a session does."""
    out = np.empty_like(values)
    for first, end in zip(starts, [*starts[1:], len(values)], strict=True):
        out[first:end] = running(values[first:end])
    return out
