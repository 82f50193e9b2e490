"""Choose the next attempt. Pure: no clock, no files; starting it is world/process.py's job, experiments are the lab's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.core.types import Decision, Diagnosis, Launch, Verdict, Wreck

REPEATS = {"killed": 8, "vanished": 8, "never_started": 8}  # somebody else's doing, often; the rest is the program's own
REPEATS_OTHERWISE = 3
BARREN = 20
FINAL = ("checkpoint_unreadable", "disk_full")  # another attempt would meet the same
FINAL_KINDS = ("refused", "stuck")
EXPERIMENTS_AFTER = 2  # deaths in the same step without a new one; the first restart is the first experiment


@dataclass(frozen=True)
class Past:
    """One dead attempt in short: the step it died in (None: before its first), its cause and end, what it was started with."""

    step: int | None
    cause: str
    kind: str
    settings: tuple[tuple[str, object], ...]
    progressed: bool  # it committed a step
    remedied: bool = False  # something was changed after it


def decide(wreck: Wreck, diagnosis: Diagnosis, history: list[Past], launch: Launch) -> Decision:
    """Resume as it is while the two ledgers allow it. `history` ends with the attempt of `wreck`.

    repeats: same cause, same launch, no new progress. barren: attempts in a row without a newly committed step, whatever the cause.
    """
    if diagnosis.cause in FINAL or wreck.ending.kind in FINAL_KINDS:
        return Decision(None, "none", str(wreck.ending.facts.get("reason") or "; ".join(clue.text for clue in diagnosis.clues)))
    barren = _trailing(history, lambda past: not past.progressed)
    newest = history[-1]
    repeats = _unchanged(history, lambda past: not past.progressed and _key(past) == _key(newest))
    limit = REPEATS.get(wreck.ending.kind, REPEATS_OTHERWISE)
    where = f"at step {wreck.step}" if wreck.step is not None else "before its first step"
    if repeats >= limit:
        return Decision(None, "none", f"{repeats} attempts in a row {wreck.ending.words()} {where} without a new step")
    if barren >= BARREN:
        return Decision(None, "none", f"{barren} attempts in a row committed no new step, for changing reasons")
    return Decision(launch, "resume", f"{wreck.ending.words()} {where}; starting again from the newest state")


def wants_experiments(wreck: Wreck, diagnosis: Diagnosis, history: list[Past]) -> bool:
    """Whether the step in flight is to be tried in the lab: it has ended several attempts. The first restart is the first experiment."""
    if wreck.step is None or diagnosis.cause in FINAL or wreck.ending.kind in (*FINAL_KINDS, "no_state", "never_started"):
        return False
    from_outside = wreck.ending.kind == "vanished" or wreck.ending.code == -9
    deaths = deaths_in_step(history)
    first = EXPERIMENTS_AFTER + (1 if from_outside else 0)
    return deaths >= first and (deaths - first) % 2 == 0


def deaths_in_step(history: list[Past]) -> int:
    """Attempts in a row that ended in the newest one's step, nothing having been changed between them; deaths at the start are passed over.

    By the step alone: the row of the step before may be committed only by the next attempt, from the snapshot, and look like progress.
    """
    return _unchanged([past for past in history if past.step is not None], lambda past: past.step == history[-1].step)


def decide_after(verdict: Verdict, wreck: Wreck, before: Decision, launch: Launch) -> Decision:
    """What follows from the experiments. `before` is what would have been done without them.

    `launch` is the one that goes on; where settings or rows change, they are on the timeline before it starts.
    """
    told = f"{verdict.evidence} ({verdict.trials} trials, {verdict.seconds:.0f} s)"
    if verdict.kind == "rows":
        rows = ", ".join(verdict.sources)
        return Decision(launch, "quarantine", f"step {wreck.step} fails because of {rows}; left out from now on", told)
    if verdict.kind == "setting":
        change = ", ".join(f"{name} = {value}" for name, value in (verdict.settings | verdict.env).items())
        return Decision(launch, verdict.remedy, f"step {wreck.step} goes through with {change}; going on with that", told)
    if verdict.kind == "transient" or before.launch is not None:
        return Decision(before.launch, "resume" if before.launch else "none", f"{before.reason}; the lab: {verdict.evidence}", told)
    reason = f"{before.reason}; experiments found no change that helps: {verdict.evidence}"
    return Decision(None, "none", reason, told)


def _key(past: Past) -> tuple[str, str, tuple[tuple[str, object], ...]]:
    return past.cause, past.kind, past.settings


def _unchanged(history: list[Past], holds: Callable[[Past], bool]) -> int:
    """Like `_trailing`, back to the last change: a remedy starts the count anew."""
    since = next((at for at in range(len(history) - 1, 0, -1) if history[at - 1].remedied), 0)
    return _trailing(history[since:], holds)


def _trailing(history: list[Past], holds: Callable[[Past], bool]) -> int:
    count = 0
    for past in reversed(history):
        if not holds(past):
            break
        count += 1
    return count
