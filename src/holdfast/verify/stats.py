"""Paired comparisons: a clustered bootstrap-t, exact tests of pairs, Holm's correction, how many rows would be needed. Pure numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
DRAWS, LEVEL, POWER = 4000, 0.05, 0.8
FEWEST = 5  # clusters below which no interval holds what it says
FEWEST_ALIKE = 29  # clusters of which, were one in ten of another kind, one is seen in 95 of 100 draws: 0.9 ** 29 < 0.05
_SKEWED = 30  # clusters at which half of the tail is left: with it, log-normal differences of 5 to 40 clusters hold the level
_LEAST_VARIANCE = 1e-6  # of a draw, as a share of the variance of the clusters: a draw of one cluster alone has none
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
    """Return the weighted mean sum(sums) / sum(weights) of differences, rows of one cluster drawn together.

    The interval is a bootstrap-t, never narrower than Student's. Its tails are smaller for few clusters, because a small sample hides
    the tail of a skewed distribution; so it covers 95 % or more. The p-value is Student's of the statistic scaled by the critical value
    of the bootstrap: it is below LEVEL exactly where the interval leaves zero out. There is none with fewer than FEWEST clusters, whose
    interval is Student's with smaller tails, nor where fewer than FEWEST_ALIKE are all equal: nothing is decided by those.
    """
    _, group = np.unique(clusters, return_inverse=True)
    count = int(group.max()) + 1 if len(group) else 0
    total: Floats = np.bincount(group, sums, count).astype(np.float64)
    weight: Floats = np.bincount(group, weights, count).astype(np.float64)
    value = float(total.sum() / weight.sum()) if weight.sum() else math.nan
    if count < 2 or math.isnan(value):
        return Difference(value, None, None, None, count)
    rest = total - value * weight
    error = math.sqrt(count / (count - 1) * float(rest @ rest)) / float(weight.sum())
    if error <= 1e-12 * abs(value):
        enough = count >= FEWEST_ALIKE
        return Difference(value, (value, value), error, (0.0 if value else 1.0) if enough else None, count)
    if count < FEWEST:
        reach = error * t_quantile(1 - tail_of(count), count - 1)
        return Difference(value, (value - reach, value + reach), error, None, count)
    student, low, high = _critical(rest, weight, seed)
    scaled = abs(value) / error * student / (low if value < 0 else high)
    p_value = min(1.0, 2 * (1 - t_cdf(scaled, count - 1)))
    return Difference(value, (value - error * high, value + error * low), error, p_value, count)


def tail_of(clusters: int) -> float:
    """Return the share of the bootstrap's draws in each tail of an interval: LEVEL / 2 of many clusters, less of few."""
    return LEVEL / 2 * clusters / (clusters + _SKEWED)


def _critical(rest: Floats, weight: Floats, seed: int) -> tuple[float, float, float]:
    """Return the critical values of (value - truth) / error: Student's, and by the bootstrap below and above, both as positive numbers.

    rest: what each cluster has beyond the mean, [clusters]; weight: [clusters].
    """
    count = len(rest)
    columns = np.stack([rest, weight, rest * rest, rest * weight, weight * weight], axis=1)
    each = max(1, _AT_ONCE // count)
    sums = [_counts(count, min(each, DRAWS - begin), seed, begin) @ columns for begin in range(0, DRAWS, each)]
    r, w, rr, rw, ww = np.concatenate(sums).T
    moved = r / w
    spread = np.maximum(rr - 2 * moved * rw + moved * moved * ww, _LEAST_VARIANCE * float(rest @ rest))
    statistic = r / np.sqrt(count / (count - 1) * spread)
    tail = tail_of(count)
    low, high = np.quantile(statistic, [tail, 1 - tail])
    student = t_quantile(1 - LEVEL / 2, count - 1)
    return student, max(student, -float(low)), max(student, float(high))


@lru_cache(maxsize=2)
def _counts(count: int, draws: int, seed: int, begin: int) -> Floats:
    """Return how often each of `count` clusters is in each of `draws` draws of as many, float64 [draws, count]."""
    chosen = np.random.Generator(np.random.Philox(key=[seed, begin])).integers(0, count, (draws, count))
    chosen += count * np.arange(draws)[:, None]
    return np.bincount(chosen.ravel(), minlength=draws * count).reshape(draws, count).astype(np.float64)


def sign_test(wins: int, losses: int) -> float:
    """Compute the two-sided exact binomial test of wins as likely as losses; on discordant pairs this is McNemar's."""
    count, fewer = wins + losses, min(wins, losses)
    if count == 0:
        return 1.0
    if count > 4000:
        return min(1.0, 2 * _NORMAL.cdf((fewer + 0.5 - count / 2) / math.sqrt(count / 4)))
    below = sum(math.comb(count, number) for number in range(fewer + 1))
    return float(min(1.0, 2 * below / 2**count))


def share_interval(wins: int, losses: int) -> tuple[float, float] | None:
    """Return the exact 95 % interval of the share of wins among wins and losses (Clopper and Pearson); None without any.

    It leaves one half out exactly where `sign_test` is below LEVEL. Of more than 4,000 it is Wilson's.
    """
    count = wins + losses
    if count == 0:
        return None
    if count > 4000:
        z = _NORMAL.inv_cdf(1 - LEVEL / 2)
        middle = (wins + z * z / 2) / (count + z * z)
        half = z / (count + z * z) * math.sqrt(wins * losses / count + z * z / 4)
        return max(0.0, middle - half), min(1.0, middle + half)
    low = _bisect(lambda share: _at_least(wins, count, share) < LEVEL / 2, 0.0, 1.0) if wins else 0.0
    high = _bisect(lambda share: _at_least(losses, count, 1 - share) >= LEVEL / 2, 0.0, 1.0) if losses else 1.0
    return low, high


def _at_least(wins: int, count: int, share: float) -> float:
    """Return the chance of `wins` or more of `count`, each won with the chance `share` between 0 and 1."""
    many = range(wins, count + 1)
    rate, other = math.log(share), math.log1p(-share)
    return sum(math.exp(_log_choices(count, number) + number * rate + (count - number) * other) for number in many)


def _log_choices(count: int, number: int) -> float:
    return math.lgamma(count + 1) - math.lgamma(number + 1) - math.lgamma(count - number + 1)


def _bisect(below: Callable[[float], bool], low: float, high: float) -> float:
    """Return the number between `low` and `high` where `below` turns from true to false."""
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) else (low, middle)
    return (low + high) / 2


def holm(p_values: dict[str, float]) -> dict[str, float]:
    """Correct each p-value for having made all these tests (Holm)."""
    found, worst = {}, 0.0
    for rank, (name, p_value) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        worst = max(worst, min(1.0, (len(p_values) - rank) * p_value))
        found[name] = worst
    return found


def rows_for(effect: float, error: float, rows: int) -> int | None:
    """Estimate how many rows would show this effect in four of five such comparisons; None where there is no telling."""
    if effect == 0 or not math.isfinite(effect) or error == 0:
        return None
    needed = rows
    for _ in range(30):  # more rows leave more of the tail, so fewer would do
        reach = _NORMAL.inv_cdf(1 - tail_of(needed)) + _NORMAL.inv_cdf(POWER)
        needed = max(FEWEST, math.ceil(rows * (reach * error / abs(effect)) ** 2))
    return max(rows + 1, needed)


def pairs_for(wins: int, losses: int, pairs: int) -> int | None:
    """Estimate how many pairs would show this share of wins, in four of five such comparisons."""
    if wins == losses:
        return None
    share = wins / (wins + losses)
    z, power = _NORMAL.inv_cdf(1 - LEVEL / 2), _NORMAL.inv_cdf(POWER)
    discordant = ((z / 2 + power * math.sqrt(share * (1 - share))) / abs(share - 0.5)) ** 2
    return max(pairs + 1, math.ceil(discordant * pairs / (wins + losses)))


def t_cdf(value: float, freedom: int) -> float:
    """Compute Student's distribution exactly, by its finite sum for whole degrees of freedom (Abramowitz and Stegun 26.7.3, 26.7.4)."""
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
    """Return the value below which `share` of Student's distribution lies, by bisection."""
    return _bisect(lambda value: t_cdf(value, freedom) < share, -1e4, 1e4)
