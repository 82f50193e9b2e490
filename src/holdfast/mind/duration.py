"""How long a run takes, from what runs took on this machine before or from what the doctor measured of it. Pure; seconds throughout."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.core.run.plan import Params, Seconds

_OTHER_SIZE = 2.0  # range either way where only runs of other shapes are known: small matrices are multiplied more slowly than large ones
_ENOUGH = 5  # steps that were seen, before anything is said of those to come
_LEAST, _LIKELY = 0.1, 1 / 3  # of the probe's own rate, which training comes to: 30 to 50 % are reported of large models


@dataclass(frozen=True)
class Past:
    """A run that ended on this machine. alike: of the same shape, so that its rates are this run's own.

    work: operations a token; rate: tokens a second in committed steps, likely, and the 10th and 90th of a hundred steps; begin, end: from
    the start to the first step, and from the last step on; beside: of a second of steps, what saving and evaluating on the way took;
    wall, lost: of the whole run, and to failures.
    """

    alike: bool
    precision: str
    work: float
    rate: tuple[float, float, float]
    begin: float
    end: float
    beside: float
    wall: float
    lost: float


@dataclass(frozen=True)
class Ahead:
    """What a run has before it. tokens: trained; checked: tokens that go forward alone, in evaluations."""

    tokens: float
    checked: float
    work: float
    precision: str


def work_of(params: Params) -> float:
    """Operations a token: forward and the gradient of inputs through all weights, the gradient of weights where they are trained."""
    return 4.0 * params.total + 2.0 * params.trainable


def duration(ahead: Ahead, runs: Sequence[Past], probed: float | None) -> tuple[Seconds | None, str]:
    """(wall time, what it rests on); None where nothing is known. probed: operations a second of products in this precision."""
    same = [run for run in runs if run.alike]
    others = [run for run in runs if not run.alike and run.precision == ahead.precision]
    if same:
        rates = (statistics.median(run.rate[0] for run in same), min(run.rate[1] for run in same), max(run.rate[2] for run in same))
        basis = "as a run of this shape took here" if len(same) == 1 else f"as {len(same)} runs of this shape took here"
    elif others:
        near = min(others, key=lambda run: abs(math.log(run.work / ahead.work)))
        rate = near.rate[0] * near.work / ahead.work
        rates = (rate, rate / _OTHER_SIZE, rate * _OTHER_SIZE)
        basis = "judged by a run of another shape here, a factor of two either way"
    elif probed:
        rates = (probed * _LIKELY / ahead.work, probed * _LEAST / ahead.work, probed / ahead.work)
        basis = "between the rate of products that the doctor measured and a tenth of it; loading, saving and failures are not counted"
    else:
        return None, "how long it takes is unknown: no run has ended on this machine, and the doctor's probe of speed is not at hand"
    known = same or others
    parts = [_whole(ahead, rate, known) for rate in (rates[2], rates[0], rates[1])]
    if known:
        basis += _failures(known)
    return Seconds(low=round(parts[0], 1), likely=round(parts[1], 1), high=round(parts[2] + _expected(parts[2], known), 1)), basis


def _whole(ahead: Ahead, rate: float, runs: Sequence[Past]) -> float:
    """Seconds of it all at `rate` tokens a second."""
    steps = (ahead.tokens + ahead.checked / 2) / rate
    if not runs:
        return steps
    begin, end = statistics.median(run.begin for run in runs), statistics.median(run.end for run in runs)
    whole = begin + steps * (1 + statistics.median(run.beside for run in runs)) + end
    return whole + _expected(whole, runs)


def _expected(seconds: float, runs: Sequence[Past]) -> float:
    """Seconds that failures are expected to take, as often as they came."""
    wall = sum(run.wall for run in runs)
    return seconds * sum(run.lost for run in runs) / wall if wall else 0.0


def _failures(runs: Sequence[Past]) -> str:
    share = _expected(1.0, runs)
    return f"; failures took {share:.1%} of it, and are expected to" if share else "; no failure is expected, because none was seen"


def remaining(seen: Sequence[tuple[int, float]], steps: int) -> Seconds | None:
    """What is left of a run, from (step, time) of steps that were seen to be committed: what lay between them is counted, failures too.

    steps: still to come. The range is that of the pace over stretches of a tenth of what was seen. None before there is enough to tell.
    """
    if len(seen) < _ENOUGH or steps < 0:
        return None
    (first, began), (last, ended) = seen[0], seen[-1]
    stretch = max(1, (len(seen) - 1) // 10)
    pairs = zip(seen[::stretch], seen[stretch::stretch], strict=False)
    paces = [(later - before) / (after - at) for (at, before), (after, later) in pairs if after > at]
    if len(paces) < _ENOUGH - 1 or last <= first or ended <= began:
        return None
    likely = (ended - began) / (last - first)
    low, *_, high = statistics.quantiles(paces, n=10)
    low, high = max(0.0, min(low, likely)), max(high, likely)
    return Seconds(low=round(steps * low, 1), likely=round(steps * likely, 1), high=round(steps * high, 1))
