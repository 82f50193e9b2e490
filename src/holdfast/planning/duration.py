"""How long a run takes, from what runs took on this machine before or from what the doctor measured of it. Pure; seconds throughout."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, Field

from holdfast.base.units import counted, span
from holdfast.run.plan import Params, Seconds

_OTHER_SIZE = 2.0  # range either way where only runs of other shapes are known: small matrices are multiplied more slowly than large ones
_FEW_RUNS = 2.0  # range either way of loading and evaluating, which one run shows once
_MANY = 3  # runs
_LONG = 10 * 3600.0  # seconds of runs, after which their failures are a rate
_UNTIMED = (5.0, 30.0, 120.0)  # seconds of loading and evaluating that are allowed where no run showed them: least, likely, most
_ENOUGH = 5  # steps that were seen, before anything is said of those to come
FORWARD = 0.5  # of a trained token's operations: what a token takes that goes forward alone, beside an adapter's
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "experts_per_token")
_LEAST, _LIKELY = 0.1, 1 / 3  # of the probe's own rate, which training comes to: 30 to 50 % are reported of large models


_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Span = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class PastRun(BaseModel, frozen=True, extra="ignore"):
    """A run that ended on this machine. alike: of the same shape, so that its rates are this run's own.

    work: operations a token; rate: tokens a second in committed steps, likely, and the 10th and 90th of a hundred steps; begin, end: from
    the start to the first step, and from the last step on, held-out tokens left out; beside: of a second of steps and evaluations, what
    saving took; wall, lost: of the whole run, and to failures. check: of a trained token's time, what one takes that is evaluated; None in
    rows of earlier versions, whose end and beside hold evaluations, too. cards: that computed at the same time; None in rows of earlier
    versions, whose work counts idle experts, too.
    """

    precision: str
    work: _Positive
    rate: tuple[_Positive, _Positive, _Positive]
    begin: _Span
    end: _Span
    beside: _Span
    wall: _Positive
    lost: _Span
    check: _Span | None = None
    cards: int | None = Field(None, gt=0)
    alike: bool = False


@dataclass(frozen=True)
class Ahead:
    """What a run has before it. tokens: trained; checked: tokens that go forward alone, in evaluations; cards: that compute together.

    work: operations a token; idle: those that it would take more if it went through all experts.
    """

    tokens: float
    checked: float
    work: float
    precision: str
    cards: int = 1
    idle: float = 0.0


def work_of(params: Params, idle: float = 0.0) -> float:
    """Return the operations a token takes: forward, and backward for all inputs, and for weights where they are trained.

    idle: parameters that a token does not go through.
    """
    return 4.0 * (params.total - idle) + 2.0 * params.trainable


def idle_parameters(text: Mapping[str, Any], weights_by_part: Mapping[str, int]) -> int:
    """Return the parameters of experts that a token is not sent to; 0 where config.json, here its part on text, does not say how many."""
    count, each = (next((text[name] for name in names if name in text), None) for names in (_EXPERTS, _CHOSEN))
    if type(count) is not int or type(each) is not int or not 0 < each < count:
        return 0
    return weights_by_part.get("experts", 0) * (count - each) // count


def duration(ahead: Ahead, runs: Sequence[PastRun], probed: float | None) -> tuple[Seconds | None, str]:
    """Estimate (wall time, what it rests on); None where nothing is known. probed: operations a second of products in this precision.

    Cards that compute together are taken to be as many times as fast as one, where no run of this shape shows what they come to.
    """
    same = [run for run in runs if run.alike]
    others = [run for run in runs if not run.alike and run.precision == ahead.precision]
    known, range_ = _calm(same or others), 1.0
    if same:
        rates = (statistics.median(run.rate[0] for run in known), min(run.rate[1] for run in known), max(run.rate[2] for run in known))
        basis = "as a run of this shape took here" if len(known) == 1 else f"as {len(known)} runs of this shape took here"
    elif others:
        near = min(known, key=lambda run: (run.cards not in (None, ahead.cards), abs(math.log(run.work / _work_beside(ahead, run)))))
        more = ahead.cards / (near.cards or ahead.cards)
        rates, range_ = (near.rate[0] * near.work / _work_beside(ahead, near) * more,) * 3, _OTHER_SIZE
        basis = "judged by a run of another shape here, whose speed may be half or twice this one's"
        basis += f"; {counted(ahead.cards, 'card')} taken for {more:.2g} times that run's" if more != 1 else ""
    elif probed:
        known = _calm(runs)
        most_of = probed * ahead.cards / ahead.work
        rates = (most_of * _LIKELY, most_of * _LEAST, most_of)
        each = f" on each of {ahead.cards} cards" if ahead.cards > 1 else ""
        basis = f"between the rate of products that the doctor measured and a tenth of it{each}; failures are not counted"
    else:
        return None, "how long it takes is unknown: no run has ended on this machine, and the doctor's probe of speed is not at hand"
    least, likely, most = _beside_steps(known)
    if not known:
        basis += f"; loading and evaluating was never timed here, {span(least)} to {span(most)} are allowed for it"
    check = statistics.median(run.check or 0.0 for run in known) if known else FORWARD
    steps, beside = ahead.tokens + ahead.checked * check, 1 + (statistics.median(run.beside for run in known) if known else 0.0)
    share = _failures(same or others)
    if share:
        basis += f"; in earlier runs here failures took {share:.0%} of the time, and as much is counted on"
    low = (least + steps / rates[2] * beside) / range_
    middle = (likely + steps / rates[0] * beside) * (1 + share)
    high = (most + steps / rates[1] * beside) * (1 + 2 * share) * range_
    return Seconds(low=round(low, 1), likely=round(middle, 1), high=round(high, 1)), basis


def _work_beside(ahead: Ahead, run: PastRun) -> float:
    """Return the operations of a token as they were counted of that run."""
    return ahead.work + (ahead.idle if run.cards is None else 0.0)


def _calm(runs: Sequence[PastRun]) -> Sequence[PastRun]:
    """Return the runs without failures, or all where each had some: time lost to a failure blurs the time that loading took."""
    return [run for run in runs if not run.lost] or runs


def _beside_steps(runs: Sequence[PastRun]) -> tuple[float, float, float]:
    """Return seconds before the first step and after the last: (least, likely, most); half to twice as much where few runs were seen."""
    if not runs:
        return _UNTIMED
    took = [run.begin + run.end for run in runs]
    range_ = _FEW_RUNS if len(took) < _MANY else 1.0
    return min(took) / range_, statistics.median(took), max(took) * range_


def _failures(runs: Sequence[PastRun]) -> float:
    """Return the expected share of wall time that failures take, from past runs; 0 where too little was seen to tell.

    A run or two that failed may have had a cause that was fixed since, as a learning rate that was too high.
    """
    wall = sum(run.wall for run in runs)
    if len([run for run in runs if run.lost]) < _MANY and wall < _LONG:
        return 0.0
    return sum(min(run.lost, run.wall) for run in runs) / wall if wall else 0.0


def remaining(seen: Sequence[tuple[int, float]], steps: int) -> Seconds | None:
    """Estimate the time left of a run from (step, time) of committed steps; time between them counts, failures included.

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
    low, high = min(max(low, min(paces)), likely), max(min(high, max(paces)), likely)  # no pace that was not seen
    return Seconds(low=round(steps * low, 1), likely=round(steps * likely, 1), high=round(steps * high, 1))
