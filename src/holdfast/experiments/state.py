"""Whether the state before a failing step is to blame, or the rate that led to it: train to that step again from an older state."""

from __future__ import annotations

import math

from holdfast.base.files import Json
from holdfast.diagnosis.divergence import RATES
from holdfast.experiments.replay import TrialChange
from holdfast.experiments.trials import Lab
from holdfast.run.types import Verdict

_GROSS = 1.0  # a stored value that is off by as much as the largest of its tensor is no rounding
_AGREE = 0.1  # of what the stored value is off: two trials that give that value again may be so far apart
_NEAR = 1.4  # times the loss at the best of the rates: beyond it the weights are spoilt, if finite


def blame_the_state(lab: Lab, failed: Json, rates: bool) -> Verdict | None:
    """Train to the step again from older states and judge; None where it fails from there, too, at lower rates as well.

    `failed` is the outcome of the step as it was; `rates`: try lower rates as well. A state is accused only where training gives another
    one, by far: rounding and chance accuse none.
    """
    before = lab.step - 1 - int(failed.get("recomputed", 0))
    older = lab.older_states(before)
    for to in older:
        again = lab.outcome(TrialChange(since=to + 1, until=lab.step))
        if not again["finite"]:
            continue
        differs = again.get("differs")
        if differs is None or differs["times"] < _GROSS or not _comes_again(lab, to, differs):
            return None  # from the same state it went through: a failure that comes and goes
        text = f"the state after step {before} is damaged: {_words(differs)}; trained again from step {to}, step {lab.step} goes through"
        return lab.verdict("state", text, remedy="rollback", cause="hardware_fault", to=to)
    return _first_rate(lab, older[:1] + older[1:][-1:]) if rates else None


def _comes_again(lab: Lab, to: int, differs: Json) -> bool:
    """Return whether training once more gives the value that the stored state should have, too: one computation accuses nobody.

    Where bits are not always the same, the first updates of weights that hardly have a gradient go by the signs of rounding errors, so
    that two computations may differ by all there is.
    """
    again = lab.outcome(TrialChange(since=to + 1, until=lab.step), anew=True)
    other = again.get("differs") if again["finite"] else None
    if other is None or (other["tensor"], other["at"]) != (differs["tensor"], differs["at"]):
        return False
    apart, off = abs(other["again"] - differs["again"]), abs(differs["stored"] - differs["again"])
    return bool(apart <= _AGREE * off)


def blame_the_rate(lab: Lab, onset: int, limit: float) -> Verdict | None:
    """Try lower rates from before step `onset`, since when the loss is above `limit`; None where none keeps it below.

    The loss of step `onset` is that of weights which the step before it has made: the state before both is sound.
    """
    sound = [to for to in lab.older_states(lab.step - 1) if to <= onset - 2]
    return _first_rate(lab, sound[:1], limit)


def _first_rate(lab: Lab, states: list[int], limit: float = math.inf) -> Verdict | None:
    for to in states:
        if (factor := _rate_that_holds(lab, to, limit)) is not None:
            text = f"trained again from step {to}, step {lab.step} fails as it is and goes through at {factor:g} times the learning rate"
            rate = {"lr_factor": lab.settings.lr_factor * factor}
            return lab.verdict("setting", text, remedy="rollback", settings=rate, cause="divergence", to=to)
    return None


def _rate_that_holds(lab: Lab, to: int, limit: float) -> float | None:
    """Find the largest share of the learning rate at which the step goes through, twice, with a loss near the best; None: none does."""
    tried = {factor: TrialChange(settings={"lr_factor": lab.settings.lr_factor * factor}, since=to + 1, until=lab.step) for factor in RATES}
    losses = {factor: float(outcome["loss"]) for factor, change in tried.items() if (outcome := lab.outcome(change))["finite"]}
    near = [factor for factor, loss in losses.items() if loss <= min(limit, _NEAR * min(losses.values()))]
    return max(near) if near and not lab.fails(tried[max(near)], anew=True) else None


def _words(differs: Json) -> str:
    return f"{differs['tensor']} holds {differs['stored']:.3g} at {differs['at']}, where the same steps give {differs['again']:.3g} again"
