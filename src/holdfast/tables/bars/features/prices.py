"""Returns over bars, sessions and the gap between sessions. C, O: close and open of a bar, scaled over changes of contract."""

from __future__ import annotations

import numpy as np

from holdfast.tables.bars.features.feature import Compute, feature
from holdfast.tables.bars.features.stretch import Stretch
from holdfast.tables.bars.features.windows import Column, shifted, window_moments, window_sum

_CLM = "Campbell, Lo & MacKinlay, The Econometrics of Financial Markets, 1997, ch. 1"


def _return_over(count: int) -> Compute:
    """Return the feature of the log return over `count` bars."""

    @feature("log return", _CLM, name=f"return_{count}", formula=f"ln(C[t] / C[t-{count}]), k counted in bars.")
    def over(bars: Stretch) -> Column:
        return bars.log_close - shifted(bars.log_close, count)

    return over


return_1, return_5, return_15, return_30, return_60, return_240 = map(_return_over, (1, 5, 15, 30, 60, 240))


@feature("log return", _CLM)
def return_session(bars: Stretch) -> Column:
    """ln(C[t] / O of the first bar of the session)."""
    return np.log(bars.close / bars.session_open)


@feature("log return", "Stoll & Whaley, Stock market structure and volatility, 1990")
def gap_open(bars: Stretch) -> Column:
    """ln(O of the first bar of the session / C of the last bar of the session before)."""
    last = np.append(np.nan, bars.close[np.append(bars.starts[1:], len(bars)) - 1])[:-1]
    return bars.of_session(np.log(bars.open[bars.starts] / last))


@feature("standard deviations", "Bollinger, Bollinger on Bollinger Bands, 2001")
def zscore_60(bars: Stretch) -> Column:
    """(C[t] - m) / s; m, s: mean and population standard deviation of the 60 newest closes."""
    mean, deviation = window_moments(bars.close, 60)
    return (bars.close - mean) / deviation


@feature("0 to 1", "Kaufman, Smarter Trading, 1995 (efficiency ratio)")
def efficiency_60(bars: Stretch) -> Column:
    """|C[t] - C[t-60]| / sum of |C[i] - C[i-1]| over the 60 newest bars."""
    moves = np.abs(bars.close - shifted(bars.close, 1))
    return np.abs(bars.close - shifted(bars.close, 60)) / window_sum(moves, 60)


@feature("0 to 100", "Wilder, New Concepts in Technical Trading Systems, 1978; with simple means (Cutler)")
def rsi_14(bars: Stretch) -> Column:
    """100 U / (U + D); U, D: sums of the rises and of the falls of C over the 14 newest bars."""
    moves = bars.close - shifted(bars.close, 1)
    up, down = window_sum(np.maximum(moves, 0.0), 14), window_sum(np.maximum(-moves, 0.0), 14)
    return 100.0 * up / (up + down)
