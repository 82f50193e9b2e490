"""Where a bar stands in the day, the week and the session, in local time of the exchange."""

from __future__ import annotations

import numpy as np

from holdfast.tables.bars.features.feature import feature
from holdfast.tables.bars.features.stretch import Stretch
from holdfast.tables.bars.features.windows import Column

_AB = "Andersen & Bollerslev, Intraday periodicity and volatility persistence, 1997"
_DAY = 1440.0  # minutes


@feature("-1 to 1", _AB)
def minute_sin(bars: Stretch) -> Column:
    """sin(2 pi m / 1440); m: local minute of the day."""
    return np.sin(2.0 * np.pi * bars.minute / _DAY)


@feature("-1 to 1", _AB)
def minute_cos(bars: Stretch) -> Column:
    """cos(2 pi m / 1440); m: local minute of the day."""
    return np.cos(2.0 * np.pi * bars.minute / _DAY)


@feature("0 to 6", "French, Stock returns and the weekend effect, 1980")
def weekday(bars: Stretch) -> Column:
    """Day of the week of the session; 0: Monday."""
    return ((bars.session + 3) % 7).astype(np.float64)


@feature("minutes", _AB)
def session_minutes(bars: Stretch) -> Column:
    """Minutes since the begin of the first bar of the session."""
    return (bars.time - bars.time[bars.starts][bars.session_number]) / 6e7


@feature("minutes", "Engle & Russell, Autoregressive conditional duration, 1998")
def minutes_since_bar(bars: Stretch) -> Column:
    """Minutes between the begins of this bar and of the one before."""
    return np.append(np.nan, np.diff(bars.time) / 6e7)


@feature("0 or 1", "CME Group, trading hours of equity index futures")
def regular_hours(bars: Stretch) -> Column:
    """1 where the local time is at or after 08:30 and before 15:00."""
    return ((bars.minute >= 510) & (bars.minute < 900)).astype(np.float64)
