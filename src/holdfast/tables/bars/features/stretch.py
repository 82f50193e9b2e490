"""A stretch of bars as arrays, with what many features ask for: returns, sessions, the profile, the newest VIX. Reads no file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from holdfast.tables.bars.features.volume_profile import Profile, profile_of
from holdfast.tables.bars.features.windows import Column, Whole, by_session, shifted

_EMPTY = {"invalid": "ignore", "divide": "ignore"}


@dataclass(frozen=True)
class Vix:
    """What was known before each bar's day: the newest close, those 1 and 5 rows before it, and its rank among 252 closes."""

    close: Column
    before: Column
    week_before: Column
    rank: Column


@dataclass(frozen=True)
class Stretch:
    """Bars in the order of time. `time`: microseconds UTC of a bar's begin; `minute`: of the local day; `day`: local date, days since 1970.

    Prices are those of one continuous series: after a change of contract they are scaled, so that the change is no return.
    session: number of the trading day, days since 1970. vix: None where there is none. bin: width of a bin of the profile, in price.
    """

    time: Whole
    open: Column
    high: Column
    low: Column
    close: Column
    volume: Column
    day: Whole
    minute: Column
    session: Whole
    vix: Vix | None
    bin: float

    def __len__(self) -> int:
        return len(self.time)

    def from_bar(self, first: int) -> Stretch:
        """Return the same without the bars before `first`."""
        arrays = {name: getattr(self, name)[first:] for name in _ARRAYS}
        vix = self.vix and Vix(*(getattr(self.vix, name)[first:] for name in ("close", "before", "week_before", "rank")))
        return replace(self, vix=vix, **arrays)

    @cached_property
    def log_close(self) -> Column:
        return np.log(self.close)

    @cached_property
    def returns(self) -> Column:
        """Log return since the bar before."""
        return self.log_close - shifted(self.log_close, 1)

    @cached_property
    def squared_returns(self) -> Column:
        return self.returns * self.returns

    @cached_property
    def log_high_low(self) -> Column:
        return np.log(self.high / self.low)

    @cached_property
    def typical(self) -> Column:
        """Mean of high, low and close."""
        return (self.high + self.low + self.close) / 3.0

    @cached_property
    def starts(self) -> Whole:
        """Places at which a session begins."""
        return np.flatnonzero(np.diff(self.session, prepend=self.session[:1] - 1))

    @cached_property
    def session_number(self) -> Whole:
        """Which of the `starts` a bar belongs to."""
        return np.cumsum(np.diff(self.session, prepend=self.session[:1]) != 0)

    def of_session(self, per_session: Column) -> Column:
        """Spread one value per session over its bars."""
        return per_session[self.session_number]

    @cached_property
    def session_open(self) -> Column:
        return self.of_session(self.open[self.starts])

    @cached_property
    def session_high(self) -> Column:
        return by_session(self.high, self.starts, np.maximum.accumulate)

    @cached_property
    def session_low(self) -> Column:
        return by_session(self.low, self.starts, np.minimum.accumulate)

    @cached_property
    def session_volume(self) -> Column:
        return by_session(self.volume, self.starts, np.cumsum)

    @cached_property
    def vwap(self) -> Column:
        """Mean typical price of the session so far, weighted by volume."""
        with np.errstate(**_EMPTY):  # type: ignore[arg-type]
            return by_session(self.typical * self.volume, self.starts, np.cumsum) / self.session_volume

    @cached_property
    def profile(self) -> Profile:
        return profile_of(self.typical, self.close, self.volume, self.starts, self.bin)


_ARRAYS = ("time", "open", "high", "low", "close", "volume", "day", "minute", "session")
