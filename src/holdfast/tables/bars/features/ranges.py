"""Shape of a bar, and where the close stands in ranges. O, H, L, C: of the bar."""

from __future__ import annotations

import numpy as np

from holdfast.tables.bars.features.feature import feature
from holdfast.tables.bars.features.stretch import Stretch
from holdfast.tables.bars.features.windows import Column, shifted, window_max, window_min

_NISON = "Nison, Japanese Candlestick Charting Techniques, 1991"
_WILDER = "Wilder, New Concepts in Technical Trading Systems, 1978"
_LANE = "Lane, Lane's stochastics, 1984"


@feature("log ratio", "Parkinson, The extreme value method, 1980")
def range_1(bars: Stretch) -> Column:
    """ln(H / L)."""
    return bars.log_high_low


@feature("log return", _NISON)
def body(bars: Stretch) -> Column:
    """ln(C / O)."""
    return np.log(bars.close / bars.open)


@feature("log ratio", _NISON)
def upper_wick(bars: Stretch) -> Column:
    """ln(H / max(O, C))."""
    return np.log(bars.high / np.maximum(bars.open, bars.close))


@feature("log ratio", _NISON)
def lower_wick(bars: Stretch) -> Column:
    """ln(min(O, C) / L)."""
    return np.log(np.minimum(bars.open, bars.close) / bars.low)


@feature("share of price", _WILDER)
def true_range(bars: Stretch) -> Column:
    """(max(H, C[t-1]) - min(L, C[t-1])) / C[t-1]."""
    before = shifted(bars.close, 1)
    return (np.maximum(bars.high, before) - np.minimum(bars.low, before)) / before


@feature("0 to 1", _LANE)
def close_in_range_60(bars: Stretch) -> Column:
    """(C - l) / (h - l); h, l: highest H and lowest L of the 60 newest bars."""
    high, low = window_max(bars.high, 60), window_min(bars.low, 60)
    return (bars.close - low) / (high - low)


@feature("0 to 1", _LANE)
def close_in_session(bars: Stretch) -> Column:
    """(C - l) / (h - l); h, l: highest H and lowest L of the session so far."""
    return (bars.close - bars.session_low) / (bars.session_high - bars.session_low)


@feature("log ratio", "Parkinson, The extreme value method, 1980")
def range_session(bars: Stretch) -> Column:
    """ln(h / l); h, l: highest H and lowest L of the session so far."""
    return np.log(bars.session_high / bars.session_low)
