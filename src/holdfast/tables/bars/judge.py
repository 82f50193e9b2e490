"""Judge bars: which are kept, and why another is not. A bar is never changed. Vectorised; remembers the newest time alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import polars as pl

from holdfast.base.errors import BLOCKED, Stop
from holdfast.base.files import Json
from holdfast.base.units import counted
from holdfast.tables.bars.features.windows import Whole
from holdfast.tables.bars.read import Layout
from holdfast.tables.table.frames import LINE, RAGGED
from holdfast.tables.table.times import NONE, times_of

REASONS = {
    "too_many_fields": "the line has more fields than the header names",
    "timestamp_unreadable": "no time as in 2025-09-11T09:30:00-05:00",
    "timestamp_repeated": "the bar before has the same time",
    "timestamp_unordered": "a bar before is of a later time",
    "not_a_number": "a price or the volume is no finite number",
    "price_not_positive": "a price is 0 or less; logarithms need positive ones",
    "volume_negative": "the volume is below 0",
    "high_below_low": "high and low do not enclose open and close",
}
_NOON = 720  # minutes
_PRICES = ("open", "high", "low", "close")


@dataclass(frozen=True)
class KeptBars:
    """Bars that are kept, as arrays. frame: their rows as texts, `first_of_contract`: where another contract begins than the bar before."""

    frame: pl.DataFrame
    time: Whole
    day: Whole
    minute: npt.NDArray[np.float64]
    session: Whole
    prices: dict[str, npt.NDArray[np.float64]]
    volume: npt.NDArray[np.float64]
    first_of_contract: npt.NDArray[np.bool_]


@dataclass
class Judge:
    """Takes the chunks of one file in order. zone: of the exchange; begin: minutes after midnight at which a session begins there."""

    layout: Layout
    zone: str
    begin: int
    kept: int = 0
    without_offset: int = 0
    contracts: int = 1
    by_reason: Counter[str] = field(default_factory=Counter)
    _newest: int | None = None
    _contract: str | None = None

    def take(self, frame: pl.DataFrame) -> tuple[KeptBars, list[Json]]:
        """Return (bars that are kept, {line, reason, detail, raw} of the others). Raises Stop(2) where the zone is unknown."""
        columns = self.layout.columns
        time, _, plain = times_of(frame[columns["timestamp"]], self.zone)
        self.without_offset += plain
        numbers = {name: _numbers(frame[columns[name]]) for name in (*_PRICES, "volume")}
        reason = self._reasons(time, numbers, frame[RAGGED].is_not_null().to_numpy())
        good = reason < 0
        rejects = self._rejects(frame, reason)
        stamps = time[good]
        if len(stamps):
            self._newest = int(stamps[-1])
        self.kept += len(stamps)
        return self._as_arrays(frame.filter(pl.Series(good)), stamps, {name: values[good] for name, values in numbers.items()}), rejects

    def _reasons(self, time: Whole, numbers: dict[str, npt.NDArray[np.float64]], ragged: npt.NDArray[np.bool_]) -> npt.NDArray[np.int8]:
        """Return the index into REASONS that each bar is rejected for; -1: none."""
        open_, high, low, close = (numbers[name] for name in _PRICES)
        finite = np.logical_and.reduce([np.isfinite(values) for values in numbers.values()])
        tests = {
            "too_many_fields": ragged,
            "timestamp_unreadable": time == NONE,
            "not_a_number": ~finite,
            "price_not_positive": np.minimum.reduce([open_, high, low, close]) <= 0,
            "volume_negative": numbers["volume"] < 0,
            "high_below_low": (low > np.minimum(open_, close)) | (high < np.maximum(open_, close)),
        }
        reason = np.full(len(time), -1, np.int8)
        names = list(REASONS)
        for name, found in tests.items():
            reason[found & (reason < 0)] = names.index(name)
        sound = np.flatnonzero(reason < 0)
        stamps = time[sound]
        newest = np.maximum.accumulate(np.append(NONE if self._newest is None else self._newest, stamps))[:-1]
        reason[sound[stamps == newest]] = names.index("timestamp_repeated")
        reason[sound[stamps < newest]] = names.index("timestamp_unordered")
        return reason

    def _rejects(self, frame: pl.DataFrame, reason: npt.NDArray[np.int8]) -> list[Json]:
        bad = np.flatnonzero(reason >= 0)
        names = list(REASONS)
        self.by_reason.update(names[which] for which in reason[bad])
        rows = frame[bad.tolist()].iter_rows(named=True) if len(bad) else ()
        return [
            {"line": row.pop(LINE), "reason": names[which], "detail": REASONS[names[which]], "raw": row.pop(RAGGED) or row}
            for row, which in zip(rows, reason[bad], strict=True)
        ]

    def _as_arrays(self, frame: pl.DataFrame, time: Whole, numbers: dict[str, npt.NDArray[np.float64]]) -> KeptBars:
        local = (
            pl.Series("t", time, pl.Int64).cast(pl.Datetime("us", "UTC")).dt.convert_time_zone(self.zone).dt.replace_time_zone(None)
        ).to_physical().to_numpy() // 1_000_000
        day = local // 86_400
        minute = (local - day * 86_400) / 60.0
        session = (local - self.begin * 60 + (86_400 if self.begin >= _NOON else 0)) // 86_400  # an evening's is the next day's
        volume = numbers.pop("volume")
        return KeptBars(frame, time, day, minute, session, numbers, volume, self._first_of_contract(frame))

    def _first_of_contract(self, frame: pl.DataFrame) -> npt.NDArray[np.bool_]:
        changed = np.zeros(len(frame), np.bool_)
        if self.layout.contract and len(frame):
            names = frame[self.layout.contract].fill_null("")
            changed = names.ne(names.shift(1, fill_value=names[0] if self._contract is None else self._contract)).to_numpy()
            self._contract = names[-1]
            self.contracts += int(changed.sum())
        return changed


def _numbers(texts: pl.Series) -> npt.NDArray[np.float64]:
    return texts.str.strip_chars().cast(pl.Float64, strict=False).fill_null(np.nan).to_numpy()


def refuse_several(contracts: int, sessions: int, file: str) -> None:
    """Raise Stop(1) where contracts take turns within sessions: several stand side by side in the file, and no series is made of them."""
    if contracts - 1 > 2 * sessions:
        text = f"{file}: the contract changes {contracts - 1:,} times in {counted(sessions, 'session')}: several stand side by side"
        raise Stop(BLOCKED, text, "give a file with one contract at a time, as the one with most volume of each day")


def refuse_backward(kept: int, rejected: Counter[str], file: str) -> None:
    """Raise Stop(1) where a file holds few bars in the order of time: it is sorted otherwise, and its rejects would be no accident."""
    if rejected["timestamp_unordered"] > kept:
        text = f"{file}: {rejected['timestamp_unordered']:,} bars are of an earlier time than one before them, {kept:,} are not"
        raise Stop(BLOCKED, text, "sort the file by time, oldest first")
