"""Volume profiles at every bar: of the session so far, of the session before, and of the last day's bars. numpy, no loop over bars.

A bar's volume counts at the bin of its typical price. A block of bars becomes a matrix [bars, bins] of cumulated volume; what is asked of
each bar is asked of all rows of it at once. The grid of bins is fixed and each row holds only what was traded by then, so nothing here
depends on a later bar. VPOC: the bin with most volume, the lowest of several. Value area: from the VPOC outwards, each time to the side
whose next bin has more volume (upwards where both have as much), until 70 % of the volume is inside; a side with no volume left is not
taken (J. Dalton, Mind over Markets, 1990, one bin at a time).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from holdfast.tables.bars.features.windows import Column, Whole

VALUE_AREA = 0.7  # share of the volume
ROLLING = 1380  # bars of the rolling profile: a day of a futures session
_CLIP = 2000  # bins each way from the block's first bar; what lies beyond counts at the edge, so that one bad tick costs no memory
_CELLS = 1 << 22  # of a matrix
_BLOCK, _LEAST = 4096, 256  # bars of a block of the rolling profile
_NODE = 0.5  # of the VPOC's volume: what a high-volume node has at least


@dataclass(frozen=True)
class Levels:
    """Prices: of most volume (the middle of its bin), upper and lower edge of the value area."""

    vpoc: Column
    high: Column
    low: Column


@dataclass(frozen=True)
class Profile:
    """At each bar. here: volume at the close's bin, relative to the mean of the bins with volume; nodes: local peaks of half the VPOC."""

    session: Levels
    before: Levels
    rolling: Levels
    here: Column
    nodes: Column


def profile_of(typical: Column, close: Column, volume: Column, starts: Whole, width: float) -> Profile:
    """Return the profiles at each bar. starts: where sessions begin; width: of a bin, in price. NaN where nothing was traded yet."""
    bins, at_close = np.floor(typical / width).astype(np.int64), np.floor(close / width).astype(np.int64)
    count = len(typical)
    session, rolling, here, nodes = _nothing(count), _nothing(count), np.full(count, np.nan), np.full(count, np.nan)
    ends = np.append(starts[1:], count)
    for first, end in zip(starts, ends, strict=True):
        for start, stop, rows, low in _matrices(bins, volume, int(first), int(end)):
            _fill(session, slice(start, stop), _levels(rows, low, width))
            here[start:stop], nodes[start:stop] = _nodes(rows, np.clip(at_close[start:stop] - low, -1, rows.shape[1]))
    start = ROLLING - 1
    while start < count:
        stop = _end_of_block(bins, start)
        _fill(rolling, slice(start, stop), _levels(*_last_bars(bins, volume, start, stop), width))
        start = stop
    last = Levels(*(np.append(np.nan, level[ends - 1])[:-1] for level in (session.vpoc, session.high, session.low)))
    number = np.repeat(np.arange(len(starts)), ends - starts)
    before = Levels(last.vpoc[number], last.high[number], last.low[number])
    return Profile(session, before, rolling, here, nodes)


def outside(typical: Column, starts: Whole, width: float) -> npt.NDArray[np.bool_]:
    """Mask the bars whose volume counts at an edge of their session's profile, though it was traded beyond."""
    bins = np.floor(typical / width)
    first = np.repeat(bins[starts], np.diff(np.append(starts, len(bins))))
    found: npt.NDArray[np.bool_] = np.abs(bins - first) > _CLIP
    return found


def _nothing(count: int) -> Levels:
    return Levels(*(np.full(count, np.nan) for _ in range(3)))


def _fill(levels: Levels, where: slice, found: tuple[Column, Column, Column]) -> None:
    levels.vpoc[where], levels.high[where], levels.low[where] = found


def _grid(bins: Whole) -> tuple[Whole, int, int]:
    """Return (places in the grid, its lowest bin, number of bins), with one bin free on either side."""
    near = np.clip(bins, bins[0] - _CLIP, bins[0] + _CLIP)
    low = int(near.min()) - 1
    return near - low, low, int(near.max()) - low + 2


def _matrices(bins: Whole, volume: Column, first: int, end: int) -> Iterator[tuple[int, int, Column, int]]:
    """Yield (first bar, end, cumulated volume [bars, bins], lowest bin) of stretches of one session."""
    places, low, size = _grid(bins[first:end])
    step = max(1, _CELLS // size)
    carried = np.zeros(size)
    for start in range(first, end, step):
        stop = min(start + step, end)
        rows = np.zeros((stop - start, size))
        rows[np.arange(stop - start), places[start - first : stop - first]] = volume[start:stop]
        rows[0] += carried
        np.cumsum(rows, axis=0, out=rows)
        carried = rows[-1].copy()
        yield start, stop, rows, low


def _end_of_block(bins: Whole, start: int) -> int:
    """Return where a block of the rolling profile ends that begins at `start`: sooner where prices spread over many bins."""
    size = _BLOCK
    while size > _LEAST and (size + ROLLING) * _grid(bins[start - ROLLING + 1 : start + size])[2] > _CELLS:
        size //= 2
    return min(start + size, len(bins))


def _last_bars(bins: Whole, volume: Column, start: int, stop: int) -> tuple[Column, int]:
    """Return (volume of the last ROLLING bars [bars, bins], lowest bin). A bin in which none of them traded has exactly 0."""
    first = start - ROLLING + 1
    places, low, size = _grid(bins[first:stop])
    at = np.arange(1, stop - first + 1), places
    rows, traded = np.zeros((len(places) + 1, size)), np.zeros((len(places) + 1, size), np.int32)
    rows[at], traded[at] = volume[first:stop], volume[first:stop] > 0
    for sums in (rows, traded):
        np.cumsum(sums, axis=0, out=sums)
    return np.where(traded[ROLLING:] > traded[:-ROLLING], rows[ROLLING:] - rows[:-ROLLING], 0.0), low


def _levels(rows: Column, low: int, width: float) -> tuple[Column, Column, Column]:
    """Return (VPOC, upper, lower edge of the value area) of each row, in price."""
    poc = rows.argmax(axis=1)
    below, above = _value_areas(rows, poc)
    traded = rows[np.arange(len(rows)), poc] > 0
    prices = (poc + low + 0.5) * width, (above + low + 1) * width, (below + low) * width
    vpoc, high, bottom = (np.where(traded, price, np.nan) for price in prices)
    return vpoc, high, bottom


def _value_areas(rows: Column, poc: Whole) -> tuple[Whole, Whole]:
    """Return (lowest, highest bin) of each row's value area. One pass widens all rows by a bin; those that are done drop out."""
    count, size = rows.shape
    flat, offset = rows.ravel(), np.arange(count) * size
    at_poc, wanted = flat[offset + poc], VALUE_AREA * _totals(rows)
    bottom, top = (rows > 0).argmax(axis=1), size - 1 - (rows[:, ::-1] > 0).argmax(axis=1)  # with volume: no sum says it of fractions
    lowest, highest = poc.copy(), poc.copy()
    lanes = np.flatnonzero(at_poc < wanted)
    have, wanted, bottom, top = at_poc[lanes], wanted[lanes], bottom[lanes], top[lanes]
    down, up, base = poc[lanes], poc[lanes], offset[lanes]
    while len(lanes):
        higher, lower = flat[base + up + 1], flat[base + down - 1]
        upward = (up < top) & ((higher >= lower) | (down <= bottom))
        have = have + np.where(upward, higher, lower)
        up, down = up + upward, down - ~upward
        done = (have >= wanted) | ((up >= top) & (down <= bottom))
        if done.any():
            lowest[lanes[done]], highest[lanes[done]] = down[done], up[done]
            lanes, have, wanted, bottom, top, down, up, base = (one[~done] for one in (lanes, have, wanted, bottom, top, down, up, base))
    return lowest, highest


def _totals(rows: Column) -> Column:
    """Sum each row bin by bin, so that bins without volume, which later bars add to the grid, change no bit of it."""
    totals: Column = np.cumsum(rows, axis=1)[:, -1]
    return totals


def _nodes(rows: Column, at: Whole) -> tuple[Column, npt.NDArray[np.float64]]:
    """Return (volume at the bins `at` relative to the mean of those with volume, number of high-volume nodes) of each row."""
    count, size = rows.shape
    most, total = rows.max(axis=1), _totals(rows)
    inside = (at >= 0) & (at < size)
    here = np.where(inside, rows[np.arange(count), np.clip(at, 0, size - 1)], 0.0)
    middle = rows[:, 1:-1]
    peaks = (middle > rows[:, :-2]) & (middle >= rows[:, 2:]) & (middle >= _NODE * most[:, None])
    with np.errstate(invalid="ignore", divide="ignore"):
        relative = here * np.count_nonzero(rows, axis=1) / total
    traded = total > 0
    return np.where(traded, relative, np.nan), np.where(traded, peaks.sum(axis=1).astype(np.float64), np.nan)
