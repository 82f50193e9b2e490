"""The daily VIX as it was known before the day of a bar: of a row dated D no bar knows before day D + 1, nor before its close."""

from __future__ import annotations

import numpy as np

from holdfast.tables.bars.features.feature import feature
from holdfast.tables.bars.features.stretch import Stretch
from holdfast.tables.bars.features.volatility import volatility_1380
from holdfast.tables.bars.features.windows import Column

_CBOE = "Cboe, VIX white paper; daily close"
_YEAR = 252 * 1380  # one-minute bars of a year's sessions


@feature("percent a year", _CBOE, needs_vix=True)
def vix_close(bars: Stretch) -> Column:
    """X: newest close of a day before the bar's local day, known at 16:00 in Chicago."""
    assert bars.vix is not None
    return bars.vix.close


@feature("log ratio", _CBOE, needs_vix=True)
def vix_change_1(bars: Stretch) -> Column:
    """ln(X / the close one row before it)."""
    assert bars.vix is not None
    return np.log(bars.vix.close / bars.vix.before)


@feature("log ratio", _CBOE, needs_vix=True)
def vix_change_5(bars: Stretch) -> Column:
    """ln(X / the close five rows before it)."""
    assert bars.vix is not None
    return np.log(bars.vix.close / bars.vix.week_before)


@feature("0 to 1", "Cboe; rank among a year of closes", needs_vix=True)
def vix_rank_252(bars: Stretch) -> Column:
    """Share of the 252 newest closes, X among them, that are X or less."""
    assert bars.vix is not None
    return bars.vix.rank


@feature("log ratio", "Bollerslev, Tauchen & Zhou, Expected stock returns and variance risk premia, 2009", needs_vix=True)
def vix_premium(bars: Stretch) -> Column:
    """ln((X / 100) / (volatility_1380 sqrt(252 1380)))."""
    assert bars.vix is not None
    a_year: Column = volatility_1380(bars) * np.sqrt(float(_YEAR))
    return np.log((bars.vix.close / 100.0) / a_year)
