"""Choose the next attempt. Pure: no clock, no files; starting it is world/process.py's job, experiments are the lab's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from holdfast.core.config.config import Run
from holdfast.core.config.settings import PartialSettings, Settings
from holdfast.core.files import Json
from holdfast.core.types import Decision, Diagnosis, Launch, Verdict, Wreck
from holdfast.mind.course import FROM_THE_START, SLOWER, Trouble

REPEATS = 3  # of what is the program's own doing
REPEATS_FROM_OUTSIDE = 8  # of what is somebody else's, often
BARREN = 20
FINAL_KINDS = ("refused", "stuck", "no_state")  # another attempt would meet the same
REPEATS_BY_CHANCE = 8  # where the lab saw the step go through as it is: another start is another chance
ROLLBACKS = 3  # in a row without getting beyond where the first of them began
OF_REMEDIES = ("remedy_applied", "remedy_helped", "remedy_refuted", "attempt_ended")  # what `refuted` and `helped` look at
WATCHED = 20  # steps after a remedy in which the same cause shows that it did not help
EXPERIMENTS_AFTER = 2  # deaths in the same step without a new one; the first restart is the first experiment


@dataclass(frozen=True)
class Past:
    """One dead attempt in short: the step it died in (None: before its first), its cause and end, what it was started with."""

    step: int | None
    cause: str
    kind: str
    settings: Settings | None  # None: they cannot be read any more
    progressed: bool  # it committed a step
    remedied: bool = False  # something was changed after it
    by_chance: bool = False  # the lab saw its step go through as it is
    from_outside: bool = False  # somebody else ended it
    investigated: bool = False  # the lab has looked into its step after it


def decide(wreck: Wreck, diagnosis: Diagnosis, history: list[Past], launch: Launch, rolled: int = 0) -> Decision:
    """Resume as it is while the two ledgers allow it. `history` ends with the attempt of `wreck`.

    repeats: same cause, same launch, no new progress. barren: attempts in a row without a newly committed step, whatever the cause.
    rolled: rollbacks in a row that came to nothing.
    """
    if wreck.ending.kind == "damaged":
        return _decide_damaged(wreck, launch, rolled)
    if is_final(wreck):
        return Decision(None, "none", str(wreck.ending.facts.get("reason") or "; ".join(clue.text for clue in diagnosis.clues)))
    history = [past for past in history if past.kind != "device_gone"]  # a GPU that was away explains nothing else
    barren = _trailing(history, lambda past: not past.progressed)
    newest = history[-1]
    repeats = _unchanged(history, lambda past: not past.progressed and _key(past) == _key(newest))
    limit = REPEATS_FROM_OUTSIDE if newest.from_outside else REPEATS
    if repeats and any(past.by_chance for past in history[-repeats:]):
        limit = max(limit, REPEATS_BY_CHANCE)
    where = f"at step {wreck.step}" if wreck.step is not None else "before its first step"
    if repeats >= limit:
        return Decision(None, "none", f"{repeats} attempts in a row {wreck.ending.words()} {where} without a new step")
    if barren >= BARREN:
        return Decision(None, "none", f"{barren} attempts in a row committed no new step, for changing reasons")
    return Decision(launch, "resume", f"{wreck.ending.words()} {where}; restarting from the newest state")


def is_final(wreck: Wreck) -> bool:
    """Whether another attempt would meet the same: as measured, or as the trainer found. Words in its output prove nothing."""
    return wreck.disk_is_full or wreck.ending.kind in FINAL_KINDS


def decide_gone(wreck: Wreck, launch: Launch, away_s: float, asked: Run) -> Decision:
    """What follows where the GPU of the plan has been gone for `away_s` seconds: look again, give up, or go on without where allowed."""
    reason = str(wreck.ending.facts.get("reason") or "torch finds no GPU")
    if away_s < asked.device_s:
        told = f"{reason}; the run was planned for one: looking for it again for {asked.device_s:g} s (run.device_s)"
        return Decision(launch, "wait", told)
    if asked.allow_cpu:
        return Decision(launch, "cpu", f"{reason} for {away_s:.0f} s; continuing on the CPU, as run.allow_cpu says")
    return Decision(None, "none", f"{reason} for {away_s:.0f} s (run.device_s = {asked.device_s:g})")


def _decide_damaged(wreck: Wreck, launch: Launch, rolled: int) -> Decision:
    """What follows from a state that training cannot have made: back to the newest one that is sound."""
    sound, told = int(wreck.ending.facts["sound"]), "; ".join(wreck.ending.facts["damaged"])
    if rolled >= ROLLBACKS:
        return Decision(None, "none", f"{told}; that came again after {rolled} rollbacks: test this machine's memory and disk")
    if sound == 0 and (wreck.step or 0) > FROM_THE_START:
        return Decision(None, "none", f"{told}; no sound state is left, and the beginning is {wreck.step} steps back")
    return Decision(launch, "rollback", f"{told}; back to step {sound}, whose state is sound", told, to=sound)


def wants_experiments(wreck: Wreck, history: list[Past]) -> bool:
    """Whether the step in flight is to be tried in the lab: it has ended several attempts. The first restart is the first experiment."""
    if wreck.step is None or is_final(wreck) or wreck.ending.kind in ("never_started", "damaged"):
        return False
    deaths = _in_step(history)[-deaths_in_step(history) :]
    if any(past.by_chance for past in deaths):
        return len(deaths) == REPEATS_BY_CHANCE  # once more, before the end
    looked = max((at for at, past in enumerate(deaths, 1) if past.investigated), default=0)
    enough = EXPERIMENTS_AFTER + (1 if deaths[-1].from_outside and not looked else 0)
    return len(deaths) - looked >= enough


def deaths_in_step(history: list[Past]) -> int:
    """Attempts in a row that ended in the newest one's step, nothing having been changed between them; deaths at the start are passed over.

    By the step alone: the row of the step before may be committed only by the next attempt, from the snapshot, and look like progress.
    """
    return _unchanged(_in_step(history), lambda past: past.step == history[-1].step)


def _in_step(history: list[Past]) -> list[Past]:
    """Without the deaths before a first step."""
    return [past for past in history if past.step is not None]


def decide_after(verdict: Verdict, wreck: Wreck, before: Decision, launch: Launch, rolled: int = 0) -> Decision:
    """What follows from the experiments. `before` is what would have been done without them.

    `launch` is the one that goes on; where settings or rows change, they are on the timeline before it starts. rolled: as in `decide`.
    """
    if verdict.kind == "stuck":
        return Decision(None, "none", verdict.evidence)
    told = f"{verdict.evidence} ({verdict.trials} trials, {verdict.seconds:.0f} s)"
    if verdict.to is not None and rolled < ROLLBACKS:
        change = "".join(f" with {name} = {value}" for name, value in verdict.settings.items())
        reason = f"step {wreck.step} goes through from the state after step {verdict.to}{change}; continuing from there"
        return Decision(launch, "rollback", reason, told, verdict.to)
    if verdict.kind == "rows":
        rows = ", ".join(verdict.sources)
        return Decision(launch, "quarantine", f"step {wreck.step} fails because of {rows}; left out from now on", told)
    if verdict.kind == "setting" and verdict.to is None:
        change = ", ".join(f"{name} = {value}" for name, value in (verdict.settings | verdict.env).items())
        return Decision(launch, verdict.remedy, f"step {wreck.step} goes through with {change}; continuing with that", told)
    if verdict.kind == "weights":
        reason = f"step {wreck.step} fails from every state and under every change: {verdict.evidence}; download the model again"
        return Decision(None, "none", reason, told)
    if verdict.kind == "transient" or before.launch is not None:
        return Decision(before.launch, "resume" if before.launch else "none", f"{before.reason}; the lab: {verdict.evidence}", told)
    reason = f"{before.reason}; experiments found no change that helps: {verdict.evidence}"
    return Decision(None, "none", reason, told)


def decide_course(trouble: Trouble, verdict: Verdict, to: int | None, barren: int, factor: float, launch: Launch) -> Decision:
    """What follows from a loss that left its level for good: back to step `to` and something changed there, or the end.

    to: the newest step before it whose state there is, None: there is none. barren: rollbacks in a row that came to nothing. factor: of the
    learning rate, in force.
    """
    if verdict.kind == "stuck":
        return Decision(None, "none", verdict.evidence)
    told = f"{verdict.evidence} ({verdict.trials} trials, {verdict.seconds:.0f} s)"
    if to is None:
        return Decision(launch, "none", f"{trouble.words()}; no state from before it is left, so the run continues as it is", told)
    if trouble.kind == "start" and verdict.kind == "uncertain" and verdict.trials:
        return Decision(launch, "none", f"{trouble.words()}; at lower rates it does the same: the run continues as it is", told)
    if barren >= ROLLBACKS:
        reason = f"{trouble.words()}; {barren} rollbacks did not cure it, the last one at {factor:g} times the learning rate"
        return Decision(None, "none", f"{reason}; look at the rows around it, or try another train.lr or train.max_grad_norm", told)
    change = {
        "transient": "nothing changed, because it did not come again in a trial",
        "rows": f"without {', '.join(verdict.sources)}",
    }.get(verdict.kind, f"at {course_settings(verdict, [], factor).get('lr_factor', factor):g} times the learning rate")
    return Decision(launch, "rollback", f"{trouble.words()}; back to step {to}, {change}", told)


def course_settings(verdict: Verdict, quarantine: Sequence[int], factor: float) -> PartialSettings:
    """The settings with which the run goes on after a rollback: what trials showed to help, or half the learning rate."""
    if verdict.kind == "transient":
        return {}
    return {"quarantine": [*quarantine, *verdict.rows]} if verdict.kind == "rows" else {"lr_factor": factor * SLOWER} | verdict.settings


def barren_rollbacks(rollbacks: list[Json]) -> int:
    """Rollbacks at the end of a list of {from, to} that did not bring the run beyond where the one before them began."""
    count = 0
    furthest = 0
    for entry in rollbacks:
        count = count + 1 if count and entry["from"] <= furthest + WATCHED else 1
        furthest = max(furthest, entry["from"])
    return count


def refuted(events: list[Json]) -> dict[str, str]:
    """Remedies that did not help in this run, with the reason: the cause they were applied for came back while they were watched."""
    found: dict[str, str] = {}
    applied: list[Json] = []
    for event in events:
        if event["event"] == "remedy_applied":
            applied.append(event)
        elif event["event"] == "attempt_ended" and event.get("step") is not None and "decision" in event:
            for one in applied:
                if one["step"] <= event["step"] < one["step"] + WATCHED and one.get("cause") == event["diagnosis"]["cause"]:
                    found.setdefault(one["remedy"], f"applied at step {one['step']}; {one['cause']} again at step {event['step']}")
    return found


def helped(events: list[Json], committed: int) -> list[Json]:
    """The applied remedies that have stood `WATCHED` steps, neither refuted nor told so before."""
    told = {event["step"] for event in events if event["event"] == "remedy_helped"}
    wrong = refuted(events)
    applied = [event for event in events if event["event"] == "remedy_applied"]
    return [one for one in applied if committed >= one["step"] + WATCHED and one["step"] not in told and one["remedy"] not in wrong]


def _key(past: Past) -> tuple[object, ...]:
    return past.cause, past.kind, past.from_outside, past.settings


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
