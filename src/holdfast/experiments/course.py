"""Find out why the loss left its level: train the steps around it again, from the state before, under one change at a time."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from statistics import median
from typing import Any

from holdfast.diagnosis.divergence import BEFORE, FROM_THE_START, RATES, Trouble
from holdfast.experiments.replay import TrialChange, TrialsSpent
from holdfast.experiments.search import smallest_failing
from holdfast.experiments.trials import Lab, NoAnswer
from holdfast.run.folder import RunFolder
from holdfast.run.snapshots.checkpoint import checkpoint_steps, next_valid
from holdfast.run.types import Verdict

_BEYOND = 14  # steps from the onset on that are trained again
_JUDGED = 7  # the last of them, whose median loss tells
_AGAIN = 2  # more trials with and without a cure, where kernels do not give the same bits
_NEAR = 1.1  # times the loss at the next lower rate: the samples are the same, and a rate that holds learns no less from them


def state_before(run: RunFolder, trouble: Trouble) -> int | None:
    """Return the newest step before the trouble whose state is on disk and whole; 0 is the beginning, None: it would cost too much."""
    checkpoint, _ = next_valid(run, [step for step in checkpoint_steps(run) if step <= trouble.onset - BEFORE])
    if checkpoint is not None:
        return checkpoint.step
    return 0 if trouble.step <= FROM_THE_START else None


def span(trouble: Trouble) -> int:
    """Return the last step that is trained again."""
    return min(trouble.step, trouble.onset + _BEYOND)


def investigate_course(lab: Lab, trouble: Trouble, steps: dict[int, Any]) -> Verdict:
    """Find what keeps a spike from coming: nothing at all (transient), samples left out (rows), a lower rate (setting); or uncertain.

    Rows are accused where as many others left out do not keep it from coming: at a rate near the edge, any change may. Where the same
    trial may end otherwise, the steps as they were and with the cure take turns before it is believed.

    `lab` stands at the first step to train again, `steps` are the rows of steps.jsonl by step.
    """

    def level(anew: bool = False, **settings: Any) -> float:
        outcome = lab.outcome(TrialChange(settings=settings, until=span(trouble)), anew)
        losses = [loss for loss in outcome.get("losses", []) if loss is not None]
        return median(losses[-_JUDGED:]) if outcome["finite"] and losses else inf  # where every row is left out, nothing was learned

    def diverged(anew: bool = False, **settings: Any) -> bool:
        return level(anew, **settings) > trouble.limit

    def without(rows: list[int]) -> bool:
        return diverged(quarantine=[*lab.settings.quarantine, *rows])

    def cures(**settings: Any) -> bool:
        return lab.exact or all(diverged(anew=True) and not diverged(anew=True, **settings) for _ in range(_AGAIN))

    seen = f"steps {lab.step} to {span(trouble)} trained again"
    try:
        if not diverged():
            return lab.verdict("transient", f"{seen}: the loss stayed at its level")
        around = [step for step in range(trouble.onset - BEFORE + 1, trouble.onset + 1) if step >= lab.step and step in steps]
        loudest = max(around, key=lambda step: steps[step].get("grad_norm") or 0.0, default=None)
        suspects = list(steps[loudest]["samples"]) if loudest is not None else []
        # the search looks for samples whose presence does it: here, whose absence cures it
        cured = suspects and not without(suspects)
        guilty = smallest_failing(suspects, lambda some: not without(list(some))) if cured else []
        others = _as_many_others(guilty, suspects, lab.step, loudest, steps)
        innocent = bool(guilty and others) and all(without(some) for some in others)
        if innocent and cures(quarantine=[*lab.settings.quarantine, *guilty]):
            text = f"{seen}: without {len(guilty)} of the {len(suspects)} samples of step {loudest} the loss stays at its level"
            sources = lab.sources(guilty)
            return lab.verdict("rows", text, remedy="rollback", rows=tuple(guilty), sources=tuple(sources))
        factor = lab.settings.lr_factor
        share = _rate_that_holds(lambda share: level(lr_factor=factor * share), trouble.limit)
        if share is not None and cures(lr_factor=factor * share):
            text = f"{seen}: at {share:g} times the learning rate the loss stays at its level"
            return lab.verdict("setting", text, remedy="rollback", settings={"lr_factor": factor * share})
    except TrialsSpent:
        return lab.verdict("uncertain", f"no answer within {lab.trials} trials and {lab.seconds():.0f} s")
    except NoAnswer as reason:
        return lab.verdict("uncertain", f"{reason}")
    if share is not None:
        return lab.verdict("uncertain", f"{seen}: the loss rises now and then, so no change is seen to keep it from that")
    return lab.verdict("uncertain", f"{seen}: the loss rises whatever is left out, and at {RATES[-1]:g} times the learning rate, too")


def _rate_that_holds(level: Callable[[float], float], limit: float) -> float | None:
    """Find the largest share of the rate whose level is below the limit and near that of the next lower one; None: none is."""
    held: tuple[float, float] | None = None
    for share in RATES:
        now = level(share)
        if held and held[1] <= _NEAR * now:
            break
        held = (share, now) if now <= limit else None
    return held[0] if held else None


def _as_many_others(guilty: list[int], suspects: list[int], first: int, loudest: int | None, steps: dict[int, Any]) -> list[list[int]]:
    """Return as many other samples of the loudest step, and of steps beside it: where they help as well, it was not the rows.

    first: the first step that is trained again.
    """
    near = sorted((step for step in steps if step >= first and step != loudest), key=lambda step: abs(step - (loudest or 0)))[: 2 * BEFORE]
    elsewhere = [one for step in near for one in steps[step]["samples"] if one not in suspects]
    same = [one for one in suspects if one not in guilty]
    return [some[: len(guilty)] for some in (same, elsewhere) if some]
