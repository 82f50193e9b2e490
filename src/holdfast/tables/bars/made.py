"""Made bars of a market that does not exist, and its VIX: for trying things out. Sessions, gaps and changes of contract as real ones have.

Returns are drawn independently of each other, so nothing can be predicted from the past but their size. With `signal`, each return leans
against the one before it by that share: a known truth to be found. The same seed makes the same bars, however many are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

_Numbers: TypeAlias = npt.NDArray[Any]
MINUTES = 1380  # of a session: 17:00 to 16:00
_DAYS_AT_ONCE = 20
_FIRST_DAY = 14_613  # 2010-01-04, a Monday, in days since 1970
_CONTRACT_DAYS = 63
_TICK, _PRICE = 0.25, 1100.0
_YEAR_DAYS = 252
_LEAD_DAYS = 300  # days of VIX before the first bar
_CODES = "HMUZ"


def made_bars(bars: int, seed: int, signal: float = 0.0) -> Iterator[pl.DataFrame]:
    """Yield `bars` one-minute bars in chunks: timestamp, open, high, low, close, volume, contract. Memory does not grow with them."""
    price, before, made, day = _PRICE, 0.0, 0, 0
    while made < bars:
        random = np.random.Generator(np.random.Philox(key=[seed, 1 + day]))
        days = np.arange(day, day + _DAYS_AT_ONCE)
        minute = np.tile(np.arange(MINUTES), _DAYS_AT_ONCE)
        wide = np.repeat(_volatility(days, seed), MINUTES) * _shape(minute)
        drawn = wide * random.standard_t(5, len(wide)) * np.sqrt(3.0 / 5.0)
        moves = _leaning(drawn, signal, before) if signal else drawn
        before = float(moves[-1])
        close = price * np.exp(np.cumsum(moves))
        opened = np.concatenate([[price], close[:-1]])
        price = float(close[-1])
        reach = opened * wide
        high = np.maximum(opened, close) + reach * random.exponential(0.4, len(wide))
        low = np.minimum(opened, close) - reach * random.exponential(0.4, len(wide))
        volume = np.floor(np.exp(random.normal(4.0, 0.8, len(wide))) * _shape(minute) ** 3) + 1
        there = random.random(len(wide)) > np.where(_shape(minute) < 0.8, 0.004, 0.0002)
        number = np.repeat(days // _CONTRACT_DAYS, MINUTES)
        basis = 1.0 + 0.004 * (number % 4)  # a new contract trades at another level
        prices = {
            name: np.round(values * basis / _TICK) * _TICK
            for name, values in zip(("open", "high", "low", "close"), (opened, high, low, close), strict=True)
        }
        frame = pl.DataFrame({"timestamp": _times(days, minute), **prices, "volume": volume.astype(np.int64), "contract": _codes(number)})
        frame = frame.filter(pl.Series(there)).head(bars - made)
        yield frame
        made += len(frame)
        day += _DAYS_AT_ONCE


def made_vix(bars: int, seed: int) -> pl.DataFrame:
    """Return DATE and CLOSE of every day that `bars` made bars reach, and of more than a year before."""
    days = np.arange(-_LEAD_DAYS, bars // (MINUTES - 10) + 2)
    random = np.random.Generator(np.random.Philox(key=[seed, 0]))
    noise = np.exp(random.normal(0.0, 0.05, len(days)))
    close = 100.0 * _volatility(days, seed) * np.sqrt(_YEAR_DAYS * MINUTES) * noise
    return pl.DataFrame({"DATE": pl.Series(_dates(days)).cast(pl.Date), "CLOSE": np.round(close, 2)})


def _volatility(days: _Numbers, seed: int) -> _Numbers:
    """Return the standard deviation of a minute's return on each trading day: slow waves, with no memory to carry over."""
    phase = np.random.Generator(np.random.Philox(key=[seed, 2**32])).random(3) * 2 * np.pi
    waves = 0.35 * np.sin(days / 40.0 + phase[0]) + 0.25 * np.sin(days / 11.0 + phase[1]) + 0.15 * np.sin(days / 3.0 + phase[2])
    wide: _Numbers = 0.00028 * np.exp(waves)
    return wide


def _shape(minute: _Numbers) -> _Numbers:
    """Return how lively a minute of the session is: most at the open and the close of regular hours (minutes 930 and 1,320)."""
    regular = (minute >= 930) & (minute < 1320)
    edges = np.exp(-np.abs(minute - 930) / 30.0) + 0.7 * np.exp(-np.abs(minute - 1320) / 30.0)
    lively: _Numbers = 0.6 + 0.8 * regular + edges
    return lively


def _leaning(drawn: _Numbers, signal: float, before: float) -> _Numbers:
    """Subtract `signal` times the move before from each move: a sum over the past that has faded after some dozen bars."""
    out, weight = drawn.copy(), 1.0
    for back in range(1, 40):
        weight *= -signal
        out[back:] += weight * drawn[:-back]
    out[0] -= signal * before
    return out


def _dates(days: _Numbers) -> _Numbers:
    """Return dates of trading days (Mondays to Fridays), in days since 1970."""
    weeks, weekday = np.divmod(days, 5)
    return (_FIRST_DAY + 7 * weeks + weekday).astype(np.int32)


def _times(days: _Numbers, minute: _Numbers) -> pl.Series:
    """Format local times with their offsets; a session begins at 17:00 of the day before its date."""
    seconds = np.repeat(_dates(days).astype(np.int64), MINUTES) * 86_400 - 7 * 3600 + minute * 60
    local = pl.Series(seconds * 1_000_000).cast(pl.Datetime("us"))
    zoned = local.dt.replace_time_zone("America/Chicago", ambiguous="earliest", non_existent="null")
    return zoned.dt.to_string("%Y-%m-%dT%H:%M:%S%:z")


def _codes(number: _Numbers) -> pl.Series:
    """Return contract names such as ESH0, by the number of the contract."""
    quarter, year = pl.Series(number % 4), pl.Series(number // 4 % 10)
    letters = quarter.replace_strict(dict(enumerate(_CODES)), return_dtype=pl.String)
    return pl.Series("contract", ["ES"]).new_from_index(0, len(number)) + letters + year.cast(pl.String)
