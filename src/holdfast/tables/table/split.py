"""Part the rows of a table: trained on, held out, or neither. By row, by group, by time with a gap, or by file; follows from the seed."""

from __future__ import annotations

import bisect
from typing import Literal

import numpy as np
import numpy.typing as npt

from holdfast.base.errors import BLOCKED, Stop
from holdfast.config.config import Config
from holdfast.config.table import Table, columns_of
from holdfast.run.sampling.shuffle import Stream, permutation
from holdfast.run.sampling.step_table import split_rows
from holdfast.tables.table.table_set import HELD_OUT, TRAINING, UNUSED, by_time

Part = npt.NDArray[np.uint8]


def part_rows(config: Config, usable: npt.NDArray[np.bool_], file: npt.NDArray[np.int32], time: npt.NDArray[np.int64],
              group: npt.NDArray[np.int32]) -> tuple[Part, Literal["row", "group", "time", "file"], int]:  # fmt: skip
    """Return (part of each row, by what they were parted, rows left out by purge and embargo). usable: rows with a target."""
    table, data, seed = columns_of(config), config.data, config.train.seed
    part = np.full(len(usable), UNUSED, np.uint8)
    part[usable] = TRAINING
    how: Literal["row", "group", "time", "file"] = table.parted_by
    purged = 0
    if data.held_out_files:
        how = "file"
        part[usable & (file >= len(data.files))] = HELD_OUT
    elif data.held_out and usable.any():
        rows = np.flatnonzero(usable)
        if how == "time":
            purged = _by_time(part, by_time(rows, time), time, file, table, data.held_out)
        elif how == "group":
            part[rows[_held_groups(group[rows], data.held_out, seed)]] = HELD_OUT
        else:
            part[rows[split_rows(len(rows), data.held_out, seed)[1]]] = HELD_OUT
    if table.data_fraction < 1:
        training = np.flatnonzero(part == TRAINING)
        kept = max(1, round(table.data_fraction * len(training)))
        part[training[permutation(len(training), seed, Stream.FRACTION)[kept:]]] = UNUSED
    return part, how, purged


def _by_time(part: Part, ordered: npt.NDArray[np.int64], time: npt.NDArray[np.int64], file: npt.NDArray[np.int32], table: Table,
             share: float) -> int:  # fmt: skip
    """Hold out the newest rows, or the stretch of the fold; return how many rows are left out beside it. Rows of one time stay together."""
    count = len(ordered)
    edges = np.round(np.linspace(count * (1 - share), count, (table.folds or 1) + 1)).astype(int)
    fold = (table.fold or 1) - 1
    first, end = (_first_at(ordered, time, at) if at < count else count for at in (edges[fold], edges[fold + 1]))
    gap = table.purge if table.purge is not None else table.horizon or 0
    begin = min(end, first + table.embargo)
    purged = _last_of_each(ordered[:first], gap, file, np.unique(file[time >= time[ordered[first]]]) if first < count else file[:0])
    part[ordered[begin:end]] = HELD_OUT
    part[purged] = UNUSED
    part[ordered[first:begin]] = UNUSED
    part[ordered[end:]] = UNUSED  # later folds
    if len(purged) >= first or begin >= end:
        text = f"of {count:,} rows, {first:,} lie before the held-out part, less {len(purged):,} of the gap (table.purge)"
        text += f", and {end - begin:,} in it"
        raise Stop(BLOCKED, text, "hold out another share (data.held_out), fewer folds, or a smaller gap")
    return begin - first + len(purged)


def _last_of_each(before: npt.NDArray[np.int64], gap: int, file: npt.NDArray[np.int32],
                  reaching: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:  # fmt: skip
    """Return the last `gap` rows, and those of each file that goes on: a file is a series, and a horizon counts its rows."""
    if not gap:
        return before[:0]
    own = [before[file[before] == one][-gap:] for one in reaching]
    return np.unique(np.concatenate([before[-gap:], *own]))


def _first_at(ordered: npt.NDArray[np.int64], time: npt.NDArray[np.int64], at: int) -> int:
    """Return the first place of the time that stands at `at`."""
    return bisect.bisect_left(range(len(ordered)), int(time[ordered[at]]), key=lambda place: int(time[ordered[place]]))


def _held_groups(group: npt.NDArray[np.int32], share: float, seed: int) -> npt.NDArray[np.bool_]:
    """Draw whole groups by seed, nearest to the share of rows; return the mask of their rows."""
    names, of = np.unique(group, return_inverse=True)
    if len(names) < 2:
        raise Stop(
            BLOCKED, f"the column of groups has {len(names)} value; rows of one group stay together", "name another column, or split: row"
        )
    order = permutation(len(names), seed, Stream.HELD_OUT)
    sizes = np.cumsum(np.bincount(of)[order])
    taken = int(np.clip(np.abs(sizes - share * len(group)).argmin() + 1, 1, len(names) - 1))
    held = np.zeros(len(names), np.bool_)
    held[order[:taken]] = True
    return held[of]
