"""Volume, and prices weighted by it. V: volume of a bar; P = (H + L + C) / 3, its typical price."""

from __future__ import annotations

import numpy as np

from holdfast.tables.bars.features.feature import feature
from holdfast.tables.bars.features.stretch import Stretch
from holdfast.tables.bars.features.windows import Column, window_mean, window_moments, window_sum

_KP = "Karpoff, The relation between price changes and trading volume, 1987"


@feature("log contracts", _KP)
def volume_log(bars: Stretch) -> Column:
    """ln(1 + V)."""
    return np.log1p(bars.volume)


@feature("ratio", _KP)
def volume_relative_60(bars: Stretch) -> Column:
    """V / mean V of the 60 newest bars."""
    return bars.volume / window_mean(bars.volume, 60)


@feature("standard deviations", _KP)
def volume_z_240(bars: Stretch) -> Column:
    """(V - m) / s; m, s: mean and population standard deviation of the 240 newest V."""
    mean, deviation = window_moments(bars.volume, 240)
    return (bars.volume - mean) / deviation


@feature("log contracts", _KP)
def volume_session(bars: Stretch) -> Column:
    """ln(1 + sum of V of the session so far)."""
    return np.log1p(bars.session_volume)


@feature("-1 to 1", "Easley, Lopez de Prado & O'Hara, Bulk volume classification, 2012 (bars signed by C - O)")
def signed_volume_60(bars: Stretch) -> Column:
    """Sum of sign(C - O) V / sum of V, over the 60 newest bars."""
    signed = np.sign(bars.close - bars.open) * bars.volume
    return window_sum(signed, 60) / window_sum(bars.volume, 60)


@feature("log ratio", "Berkowitz, Logue & Noser, The total cost of transactions, 1988")
def vwap_distance(bars: Stretch) -> Column:
    """ln(C / (sum of P V / sum of V)), over the session so far."""
    return np.log(bars.close / bars.vwap)


@feature("log return per million traded", "Amihud, Illiquidity and stock returns, 2002")
def illiquidity_60(bars: Stretch) -> Column:
    """1e6 times the mean of |ln(C[i] / C[i-1])| / (V[i] C[i]) over the 60 newest bars."""
    return 1e6 * window_mean(np.abs(bars.returns) / (bars.volume * bars.close), 60)
