"""Whether the state before a failing step is to blame, or the rate that led to it: train to that step again from an older state."""

from __future__ import annotations

from holdfast.core.files import Json
from holdfast.core.types import Verdict
from holdfast.lab.replay import Change
from holdfast.lab.trials import Lab
from holdfast.mind.course import SLOWER

_GROSS = 1.0  # a stored value that is off by as much as the largest of its tensor is no rounding


def blame_the_state(lab: Lab, failed: Json) -> Verdict | None:
    """What training to the step again from older states shows; None where it fails from there, too, at half the rate as well.

    `failed` is the outcome of the step as it was. A state is accused only where training gives another one, by far: rounding and chance
    accuse none.
    """
    before = lab.step - 1 - int(failed.get("recomputed", 0))
    older = lab.older_states(before)
    for to in older:
        again = lab.outcome(Change(since=to + 1, until=lab.step))
        if not again["finite"]:
            continue
        differs = again.get("differs")
        if differs is None or differs["times"] < _GROSS:
            return None  # from the same state it went through: a failure that comes and goes
        text = f"the state after step {before} is damaged: {_words(differs)}; trained again from step {to}, step {lab.step} goes through"
        return lab.verdict("state", text, remedy="rollback", cause="hardware_fault", to=to)
    rate = {"lr_factor": float(lab.settings.get("lr_factor", 1.0)) * SLOWER}
    for to in older[:1] + older[1:][-1:]:
        change = Change(settings=rate, since=to + 1, until=lab.step)
        if not lab.fails(change) and not lab.fails(change, anew=True):
            text = f"trained again from step {to}, step {lab.step} fails as it is and goes through at {SLOWER:g} times the learning rate"
            return lab.verdict("setting", text, remedy="rollback", settings=rate, cause="divergence", to=to)
    return None


def _words(differs: Json) -> str:
    return f"{differs['tensor']} holds {differs['stored']:.3g} at {differs['at']}, where the same steps give {differs['again']:.3g} again"
