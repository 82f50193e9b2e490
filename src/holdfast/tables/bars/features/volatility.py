"""Volatility of the newest bars, per bar. r[i] = ln(C[i] / C[i-1])."""

from __future__ import annotations

import math

import numpy as np

from holdfast.tables.bars.features.feature import Compute, feature
from holdfast.tables.bars.features.stretch import Stretch
from holdfast.tables.bars.features.windows import Column, window_mean

_ABDL = "Andersen, Bollerslev, Diebold & Labys, Modeling and forecasting realized volatility, 2003"


def _volatility_over(count: int) -> Compute:
    """Return the feature of the volatility of the `count` newest bars."""

    @feature("log return per bar", _ABDL, name=f"volatility_{count}", formula=f"Root of the mean of r^2 over the {count:,} newest bars.")
    def over(bars: Stretch) -> Column:
        return np.sqrt(window_mean(bars.squared_returns, count))

    return over


volatility_15, volatility_60, volatility_240, volatility_1380 = map(_volatility_over, (15, 60, 240, 1380))


@feature("log return per bar", "Parkinson, The extreme value method, 1980")
def parkinson_60(bars: Stretch) -> Column:
    """Root of the mean of ln(H / L)^2 / (4 ln 2) over the 60 newest bars."""
    return np.sqrt(window_mean(bars.log_high_low**2, 60) / (4.0 * math.log(2.0)))


@feature("log return per bar", "Garman & Klass, On the estimation of security price volatilities, 1980")
def garman_klass_60(bars: Stretch) -> Column:
    """Root of the mean of ln(H / L)^2 / 2 - (2 ln 2 - 1) ln(C / O)^2 over the 60 newest bars."""
    body = np.log(bars.close / bars.open)
    variance = 0.5 * bars.log_high_low**2 - (2.0 * math.log(2.0) - 1.0) * body**2
    return np.sqrt(np.maximum(window_mean(variance, 60), 0.0))


@feature("ratio", _ABDL)
def volatility_ratio(bars: Stretch) -> Column:
    """volatility_15 / volatility_240."""
    short: Column = volatility_15(bars)
    long: Column = volatility_240(bars)
    return short / long
