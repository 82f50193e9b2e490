"""Paired comparisons: a clustered bootstrap, exact tests of pairs, Holm's correction, how many rows would be needed. Pure numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
DRAWS, LEVEL, POWER = 2000, 0.05, 0.8
_NORMAL = NormalDist()
_AT_ONCE = 1 << 22  # numbers of a bootstrap that are in memory together


@dataclass(frozen=True)
class Difference:
    """A mean of paired differences per unit of weight, its interval, standard error and p-value, and how many clusters it rests on."""

    value: float
    interval: tuple[float, float] | None
    error: float | None
    p_value: float | None
    clusters: int


def paired_difference(sums: Floats, weights: Floats, clusters: npt.NDArray[Any], seed: int = 0) -> Difference:
    """The weighted mean sum(sums) / sum(weights) of differences, rows of one cluster drawn together.

    The interval is a percentile bootstrap, widened for few clusters (Hesterberg 2015, "What teachers should know about the
    bootstrap", expanded percentiles); the p-value a t-test with the jackknife's error. With fewer than 3 clusters there is neither.
    """
    _, group = np.unique(clusters, return_inverse=True)
    count = int(group.max()) + 1 if len(group) else 0
    total: Floats = np.bincount(group, sums, count).astype(np.float64)
    weight: Floats = np.bincount(group, weights, count).astype(np.float64)
    value = float(total.sum() / weight.sum()) if weight.sum() else math.nan
    if count < 3:
        return Difference(value, None, None, None, count)
    left_out = (total.sum() - total) / (weight.sum() - weight)
    error = float(np.sqrt((count - 1) / count * ((left_out - left_out.mean()) ** 2).sum()))
    drawn = _bootstrap(total, weight, seed)
    tail = _NORMAL.cdf(-math.sqrt(count / (count - 1)) * t_quantile(1 - LEVEL / 2, count - 1))
    low, high = np.quantile(drawn, [tail, 1 - tail])
    p_value = 2 * (1 - t_cdf(abs(value) / error, count - 1)) if error else (0.0 if value else 1.0)
    return Difference(value, (float(low), float(high)), error, min(1.0, p_value), count)


def _bootstrap(total: Floats, weight: Floats, seed: int) -> Floats:
    rng = np.random.Generator(np.random.Philox(seed))
    count, found = len(total), []
    each = max(1, _AT_ONCE // count)
    for begin in range(0, DRAWS, each):
        chosen = rng.integers(0, count, (min(each, DRAWS - begin), count))
        found.append(total[chosen].sum(axis=1) / weight[chosen].sum(axis=1))
    return np.concatenate(found)


def sign_test(wins: int, losses: int) -> float:
    """Two-sided exact binomial test that a win is as likely as a loss: of wins and losses, and McNemar's of discordant pairs."""
    count, fewer = wins + losses, min(wins, losses)
    if count == 0:
        return 1.0
    if count > 4000:
        return min(1.0, 2 * _NORMAL.cdf((fewer + 0.5 - count / 2) / math.sqrt(count / 4)))
    below = sum(math.comb(count, number) for number in range(fewer + 1))
    return float(min(1.0, 2 * below / 2**count))


def share_interval(wins: int, losses: int) -> tuple[float, float] | None:
    """95 % interval of the share of wins among wins and losses (Wilson); None without any."""
    count = wins + losses
    if count == 0:
        return None
    z = _NORMAL.inv_cdf(1 - LEVEL / 2)
    middle = (wins + z * z / 2) / (count + z * z)
    half = z / (count + z * z) * math.sqrt(wins * losses / count + z * z / 4)
    return max(0.0, middle - half), min(1.0, middle + half)


def holm(p_values: dict[str, float]) -> dict[str, float]:
    """Each p-value corrected for having made all these tests (Holm)."""
    found, worst = {}, 0.0
    for rank, (name, p_value) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        worst = max(worst, min(1.0, (len(p_values) - rank) * p_value))
        found[name] = worst
    return found


def rows_for(effect: float, error: float, rows: int) -> int | None:
    """How many rows like these would show an effect of that size, in four of five such comparisons; None where there is no telling."""
    if effect == 0 or not math.isfinite(effect) or error == 0:
        return None
    needed = (_NORMAL.inv_cdf(1 - LEVEL / 2) + _NORMAL.inv_cdf(POWER)) * error / abs(effect)
    return max(rows + 1, math.ceil(rows * needed**2))


def pairs_for(wins: int, losses: int, pairs: int) -> int | None:
    """How many pairs would show this share of wins, in four of five such comparisons."""
    if wins == losses:
        return None
    share = wins / (wins + losses)
    z, power = _NORMAL.inv_cdf(1 - LEVEL / 2), _NORMAL.inv_cdf(POWER)
    discordant = ((z / 2 + power * math.sqrt(share * (1 - share))) / abs(share - 0.5)) ** 2
    return max(pairs + 1, math.ceil(discordant * pairs / (wins + losses)))


def t_cdf(value: float, freedom: int) -> float:
    """Student's distribution: exact, by its finite sum for whole degrees of freedom (Abramowitz and Stegun 26.7.3, 26.7.4)."""
    if freedom > 1000:
        return _NORMAL.cdf(value * (1 - 1 / (4 * freedom)) / math.sqrt(1 + value * value / (2 * freedom)))
    angle = math.atan2(value, math.sqrt(freedom))
    cosine, sine = math.cos(angle), math.sin(angle)
    if freedom % 2:
        term, total = cosine, 0.0
        for number in range(3, freedom + 1, 2):
            total += term
            term *= cosine * cosine * (number - 1) / number
        both = 2 / math.pi * (angle + sine * total)
    else:
        term, total = 1.0, 0.0
        for number in range(2, freedom + 1, 2):
            total += term
            term *= cosine * cosine * (number - 1) / number
        both = sine * total
    return 0.5 + both / 2


def t_quantile(share: float, freedom: int) -> float:
    """The value below which `share` of Student's distribution lies, by bisection."""
    low, high = -1e4, 1e4
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(middle, freedom) < share else (low, middle)
    return (low + high) / 2
