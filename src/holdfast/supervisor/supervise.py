"""The loop above the trainer: start or adopt an attempt, watch it, collect the wreck, decide, go on. Touches no torch."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from holdfast.book import cards_of
from holdfast.core.cards.failure import Failure
from holdfast.core.config.settings import Settings
from holdfast.core.files import Json, append_line, read_json, write_json
from holdfast.core.run.folder import RunFolder
from holdfast.core.run.timeline import Entry, add_entry, read_timeline, settings_at, unlearned
from holdfast.core.types import Decision, Diagnosis, Ending, Launch, Verdict, Wreck
from holdfast.lab.course import investigate_course, state_before
from holdfast.lab.health import HealthWatch
from holdfast.lab.hosts import Hosts
from holdfast.lab.investigate import in_order, investigate
from holdfast.lab.trials import Lab, concluded, trials_left
from holdfast.mind.course import Trouble
from holdfast.mind.decide import (
    Past,
    barren_rollbacks,
    course_settings,
    deaths_in_step,
    decide,
    decide_after,
    decide_course,
    decide_gone,
    refuted,
    wants_experiments,
)
from holdfast.mind.diagnose import diagnose_wreck
from holdfast.mind.explain import ending_of
from holdfast.world import evidence, process
from holdfast.world.child import with_env
from holdfast.world.patience import Patience
from holdfast.world.pauses import Clock, Pauses
from holdfast.world.process import Attempt
from holdfast.world.rollback import roll_back, rollbacks, take_up
from holdfast.world.standby import Standby


class World(Protocol):
    """The hands the supervisor works with; tests pass others."""

    clock: Clock

    def adopt(self, run: RunFolder) -> Attempt | None: ...
    def start(self, launch: Launch, run: RunFolder, orders: Json) -> Attempt: ...
    def stand_by(self, launch: Launch) -> None: ...
    def living(self, attempt: Attempt) -> dict[str, int]: ...
    def watch(self, attempt: Attempt, run: RunFolder, tick: process.Tick) -> Ending: ...
    def collect(self, attempt: Attempt, run: RunFolder, ending: Ending) -> Wreck: ...
    def investigate(self, launch: Launch, run: RunFolder, wreck: Wreck, diagnosis: Diagnosis, deaths: int, view: View) -> Verdict: ...
    def investigate_course(self, launch: Launch, run: RunFolder, trouble: Trouble, to: int, view: View) -> Verdict: ...


class RealWorld:
    """Real processes."""

    clock: Clock = time

    def __init__(self, standby: Standby) -> None:
        self.standby = standby

    def adopt(self, run: RunFolder) -> Attempt | None:
        return process.adopt(run)

    def start(self, launch: Launch, run: RunFolder, orders: Json) -> Attempt:
        return process.start(launch, run, orders, self.standby)

    def stand_by(self, launch: Launch) -> None:
        self.standby.consider(launch)

    def living(self, attempt: Attempt) -> dict[str, int]:
        return process.living_pids(attempt)

    def watch(self, attempt: Attempt, run: RunFolder, tick: process.Tick) -> Ending:
        return process.watch(attempt, run, tick)

    def collect(self, attempt: Attempt, run: RunFolder, ending: Ending) -> Wreck:
        return evidence.collect(attempt, run, ending)

    def investigate(self, launch: Launch, run: RunFolder, wreck: Wreck, diagnosis: Diagnosis, deaths: int, view: View) -> Verdict:
        """Experiments with the step the wreck was in, on the device its trainer has left."""
        assert wreck.step is not None
        settings = settings_at(read_timeline(run.timeline_file), wreck.step)
        limit_s = Patience(run, wreck.attempt, run.config().run.hang_s).limit_s()
        applied = list(run.events())
        out = {event["remedy"] for event in applied if event["event"] == "remedy_applied" and event["step"] == wreck.step}
        machine = read_json(run.machine_file) or {}
        cards, allow_cpu = cards_of("remedies").values(), run.config().run.allow_cpu
        remedies = in_order(cards, diagnosis.cause, machine, out | set(refuted(applied)), allow_cpu)
        suspects = wreck.samples if wreck.phase == "rehearsal" else ()
        hosts = Hosts(run, wreck.step, with_env(os.environ, launch.env), limit_s, view.tell, view.stop)
        left, goes_back = trials_left(run, wreck.step), run.config().run.rollback
        lab = Lab(run, wreck.step, settings, hosts.replay, left, view.stop, goes_back)
        return concluded(lab, hosts, lambda: investigate(lab, suspects, deaths, remedies))

    def investigate_course(self, launch: Launch, run: RunFolder, trouble: Trouble, to: int, view: View) -> Verdict:
        """Experiments with the steps in which the loss left its level."""
        settings = settings_at(read_timeline(run.timeline_file), to + 1)
        limit_s = Patience(run, run.attempts()[-1], run.config().run.hang_s).limit_s()
        steps = {row["step"]: row for row in run.newest_steps() if row["step"] > to}
        hosts = Hosts(run, to + 1, with_env(os.environ, launch.env), limit_s, view.tell, view.stop)
        lab = Lab(run, to + 1, settings, hosts.replay, trials_left(run, to + 1), view.stop)
        return concluded(lab, hosts, lambda: investigate_course(lab, trouble, steps))


@dataclass(frozen=True)
class Outcome:
    """How a supervised run ended: by itself, by the user's wish, or given up with a decision that says why."""

    ending: Ending
    decision: Decision | None
    wreck: Wreck | None


@dataclass(frozen=True)
class View:
    """What the supervisor tells its audience. `stop` is asked all the while: True means the user wants to stop."""

    tick: Callable[[Attempt], None]
    tell: Callable[[str], None]
    stop: Callable[[], bool]


def supervise(relaunch: Callable[[RunFolder], Launch], run: RunFolder, orders: Json, view: View, hands: World) -> Outcome:
    """Bring the run to an end. `relaunch`: how its trainer is started now; `orders` is what every attempt's launch.json also holds."""
    places = [Path(place) for place in orders["memory_places"]]
    take_up(run, places)
    launch = relaunch(run)
    pauses, watch = Pauses(run, view.tell, hands.clock), HealthWatch(run, hands.clock)
    while True:
        attempt = hands.adopt(run)
        ended_before = attempt is not None and not hands.living(attempt)
        if attempt is None:
            pauses.wait(view.stop)
            if view.stop() and run.attempts():
                return Outcome(Ending("interrupted"), None, None)
            attempt = hands.start(launch, run, orders | {"committed_before": run.committed()} | _failures_so_far(run))
            run.event("attempt_started", attempt=attempt.number, stood_by=attempt.stood_by)
        elif not ended_before:
            view.tell(f"adopted the living attempt {attempt.number} ({_words(hands.living(attempt))})")
            run.event("attempt_adopted", attempt=attempt.number)
        failures: dict[str, Failure] = cards_of("failures")  # while the trainer starts, so that nobody waits for it after a death
        ending = hands.watch(attempt, run, _ticker(view, hands, launch, watch, pauses))
        watch.look(at_once=True)  # a short run ends between two looks
        if ending.kind != "device_gone":
            pauses.found()
        if ending.kind == "finished" and watch.trouble is None:
            return Outcome(ending, None, None)
        wreck = hands.collect(attempt, run, ending)
        if ending.kind in ("interrupted", "finished") and watch.trouble is not None and not view.stop():
            decision = _course(run, wreck, watch.trouble, launch, places, hands, view)
            watch.settled(trouble_goes_on=decision is None or decision.remedy == "none")
            if decision is not None and (decision.launch is not None or ending.kind == "finished"):
                view.tell(f"attempt {attempt.number}: {decision.reason}")
            if decision is None or decision.launch is None or (ending.kind == "finished" and decision.remedy == "none"):
                return Outcome(ending, decision, wreck)
            launch = relaunch(run)
            continue
        diagnosis = diagnose_wreck(wreck, failures)
        if ending.kind == "interrupted" or view.stop():
            _record(run, wreck, diagnosis, None)
            if ended_before and not view.stop():
                continue  # stopped by an earlier command; this one was typed to go on
            return Outcome(ending, None, wreck)
        history = [*read_history(run), _past(wreck, diagnosis, launch)]
        rolled = barren_rollbacks([*(facts for _, facts in rollbacks(run)), {"from": run.committed()}]) - 1
        away_s = pauses.missing(str(ending.facts.get("reason"))) if ending.kind == "device_gone" else None
        if away_s is None:
            decision = decide(wreck, diagnosis, history, launch, rolled)
        else:
            decision = decide_gone(wreck, launch, away_s, run.config().run)
        verdict = None
        if wreck.step is not None and wants_experiments(wreck, history) and trials_left(run, wreck.step):
            view.tell(f"attempt {attempt.number}: {wreck.ending.words()} at step {wreck.step} again; trying it with one change at a time")
            verdict = hands.investigate(launch, run, wreck, diagnosis, deaths_in_step(history), view)
            decision = decide_after(verdict, wreck, decision, launch, rolled)
        if view.stop():
            _record(run, wreck, diagnosis, None)
            return Outcome(ending, None, wreck)
        if verdict is not None:
            diagnosis = replace(diagnosis, cause=verdict.cause or diagnosis.cause)
        _record(run, wreck, diagnosis, decision, verdict)
        watch.tell_refuted()
        if verdict is not None and _apply(run, wreck, verdict, decision, diagnosis):
            launch, watch.remedied = relaunch(run), True
        if decision.remedy == "cpu" and verdict is None:
            launch, pauses = _leave_the_gpu(run, decision, relaunch), Pauses(run, view.tell, hands.clock)
        if decision.to is not None:
            roll_back(run, places, decision.to, verdict.settings if verdict else {}, [], decision.reason)
            launch = relaunch(run)
        if decision.launch is None:
            return Outcome(ending, decision, wreck)
        if decision.remedy != "wait" or away_s == 0:  # looking again and again is told once
            view.tell(f"attempt {attempt.number}: {decision.reason}")
        pauses.after(progressed=wreck.committed_after > wreck.committed_before)


def _course(
    run: RunFolder, wreck: Wreck, trouble: Trouble, launch: Launch, places: list[Path], hands: World, view: View
) -> Decision | None:
    """Deal with a loss that left its level for good: find out why, go back to before it. None where the user wants to stop."""
    to = state_before(run, trouble)
    verdict = Verdict("uncertain", 0, 0.0, "no trials")
    if to is not None and trouble.kind != "divergence" and run.config().run.trials:
        view.tell(f"{trouble.words()}; trying the steps around it with one change at a time")
        verdict = hands.investigate_course(launch, run, trouble, to, view)
    settings = settings_at(read_timeline(run.timeline_file), trouble.step)
    factor = settings.lr_factor
    earlier = [facts for _, facts in rollbacks(run)]
    barren = barren_rollbacks([*earlier, {"from": trouble.step}]) - 1
    diagnosis = Diagnosis.plain("divergence", 0.9, trouble.words())
    if view.stop():
        _record(run, wreck, diagnosis, None)
        return None
    decision = decide_course(trouble, verdict, to, barren, factor, launch)
    _record(run, wreck, diagnosis, decision, verdict)
    if decision.remedy == "rollback" and to is not None:
        quarantined = _entries(verdict, f"the loss left its level at step {trouble.onset}", to + 1)
        roll_back(run, places, to, course_settings(verdict, settings.quarantine, factor), quarantined, decision.reason)
    return decision


def _entries(verdict: Verdict, reason: str, step: int) -> list[Json]:
    """The lines of quarantine.jsonl for the rows a verdict names."""
    places = [source.rpartition(":") for source in verdict.sources]
    return [{"file": file, "line": int(line), "reason": reason, "evidence": verdict.evidence, "step": step} for file, _, line in places]


def _apply(run: RunFolder, wreck: Wreck, verdict: Verdict, decision: Decision, diagnosis: Diagnosis) -> bool:
    """Put what was seen to help on the timeline, from the failing step on; False where nothing was."""
    if verdict.kind not in ("rows", "setting") or verdict.to is not None:
        return False
    assert wreck.step is not None
    timeline = read_timeline(run.timeline_file)
    before = settings_at(timeline, wreck.step)
    settings = dict(verdict.settings)
    if verdict.kind == "rows":
        settings = unlearned(timeline, wreck.step) | {"quarantine": [*before.quarantine, *verdict.rows]}
        for entry in _entries(verdict, wreck.ending.words(), wreck.step):
            append_line(run.quarantine_file, entry, durable=True)
    if verdict.env:
        settings["env"] = before.env | verdict.env
    first = wreck.step if verdict.kind == "rows" else min(wreck.step, wreck.committed_after + 1)  # the next process has it from its start
    add_entry(run.timeline_file, Entry(first, settings, decision.reason))
    run.event("remedy_applied", step=wreck.step, remedy=decision.remedy, cause=diagnosis.cause, evidence=verdict.evidence)
    return True


def _leave_the_gpu(run: RunFolder, decision: Decision, relaunch: Callable[[RunFolder], Launch]) -> Launch:
    """Put the CPU on the timeline, from the next step on; how the trainer is started then."""
    card, step = cards_of("remedies")["cpu"], run.committed() + 1
    env = settings_at(read_timeline(run.timeline_file), step).env | card.env
    add_entry(run.timeline_file, Entry(step, card.settings | {"env": env}, decision.reason))
    run.event("setting_changed", what=f"device cuda -> cpu from step {step} on", reason=decision.reason)
    return relaunch(run)


def _ticker(view: View, hands: World, launch: Launch, watch: HealthWatch, pauses: Pauses) -> process.Tick:
    def tick(attempt: Attempt) -> bool:
        view.tick(attempt)
        if attempt.pulse() is not None:
            pauses.found()
        watch.look()
        hands.stand_by(launch)
        return view.stop() or watch.trouble is not None

    return tick


def _words(pids: dict[str, int]) -> str:
    return ", ".join(f"{role} {pid}" for role, pid in pids.items())


def _record(run: RunFolder, wreck: Wreck, diagnosis: Diagnosis, decision: Decision | None, verdict: Verdict | None = None) -> None:
    """Write everything about an ended attempt down before anything acts on it; wreck.json last, as it closes the attempt."""
    entry: dict[str, Any] = {"diagnosis": {"cause": diagnosis.cause, "confidence": diagnosis.confidence, "clues": diagnosis.words()}}
    if decision is not None:
        entry["decision"] = {"remedy": decision.remedy, "reason": decision.reason, "go_on": decision.launch is not None}
        entry["decision"] |= {"evidence": decision.evidence}
    if verdict is not None:
        entry["verdict"] = asdict(verdict)
    run.event("attempt_ended", attempt=wreck.attempt, ending=wreck.ending.words(), step=wreck.step, **entry)
    write_json(run.attempt(wreck.attempt) / "wreck.json", wreck.as_json() | entry)


def read_history(run: RunFolder) -> list[Past]:
    """Ended attempts since the run was last given up or stopped by its user, oldest first."""
    history: list[Past] = []
    for number in run.attempts():
        wreck = read_json(run.attempt(number) / "wreck.json")
        if wreck is None:
            continue
        if not wreck.get("decision", {}).get("go_on"):
            history.clear()
            continue
        settings = _settings_of((read_json(run.attempt(number) / "launch.json") or {}).get("settings", {}))
        progressed = wreck["committed_after"] > wreck["committed_before"]
        remedied = wreck["decision"]["remedy"] not in ("resume", "none", "wait")
        ending, verdict = ending_of(wreck["ending"]), wreck.get("verdict")
        seen = _by_chance(verdict), ending.from_outside, bool(verdict and verdict.get("trials"))
        history.append(Past(wreck["step"], wreck["diagnosis"]["cause"], ending.kind, settings, progressed, remedied, *seen))
    return history


def _by_chance(verdict: Json | None) -> bool:
    """Whether the lab saw the step go through as it is."""
    odds = verdict.get("odds") if verdict else None
    return odds is not None and odds[0] < odds[1]


def _failures_so_far(run: RunFolder) -> Json:
    """Attempts that died, and seconds in which attempts ran: what the checkpoint interval goes by."""
    wrecks = [wreck for number in run.attempts() if (wreck := read_json(run.attempt(number) / "wreck.json"))]
    endings = [wreck["ending"] for wreck in wrecks]
    failures = sum(ending["kind"] not in ("finished", "interrupted", "device_gone") for ending in endings)
    return {"failures": failures, "running_s": sum(ending.get("seconds") or 0.0 for ending in endings)}


def _past(wreck: Wreck, diagnosis: Diagnosis, launch: Launch) -> Past:
    progressed = wreck.committed_after > wreck.committed_before
    outside = wreck.ending.from_outside
    return Past(wreck.step, diagnosis.cause, wreck.ending.kind, launch.settings, progressed, from_outside=outside)


def _settings_of(launched: Json) -> Settings | None:
    try:
        return Settings.model_validate(launched)
    except ValidationError:
        return None
