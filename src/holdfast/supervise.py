"""The loop above the trainer: start or adopt an attempt, watch it, collect the wreck, decide, go on. Touches no torch."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from holdfast.book import cards_of
from holdfast.core.files import Json, read_json, write_json
from holdfast.core.run import RunFolder
from holdfast.core.types import Decision, Diagnosis, Ending, Launch, Wreck
from holdfast.mind.decide import Past, decide
from holdfast.mind.diagnose import diagnose_wreck
from holdfast.world import evidence, process
from holdfast.world.process import Attempt
from holdfast.world.standby import Standby


class World(Protocol):
    """The hands the supervisor works with; tests pass others."""

    def adopt(self, run: RunFolder) -> Attempt | None: ...
    def start(self, launch: Launch, run: RunFolder, orders: Json) -> Attempt: ...
    def stand_by(self, launch: Launch) -> None: ...
    def watch(self, attempt: Attempt, run: RunFolder, tick: process.Tick) -> Ending: ...
    def collect(self, attempt: Attempt, run: RunFolder, ending: Ending) -> Wreck: ...


class RealWorld:
    """Real processes."""

    def __init__(self, standby: Standby) -> None:
        self.standby = standby

    def adopt(self, run: RunFolder) -> Attempt | None:
        return process.adopt(run)

    def start(self, launch: Launch, run: RunFolder, orders: Json) -> Attempt:
        return process.start(launch, run, orders, self.standby)

    def stand_by(self, launch: Launch) -> None:
        self.standby.consider(launch)

    def watch(self, attempt: Attempt, run: RunFolder, tick: process.Tick) -> Ending:
        return process.watch(attempt, run, tick)

    def collect(self, attempt: Attempt, run: RunFolder, ending: Ending) -> Wreck:
        return evidence.collect(attempt, run, ending)


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


def supervise(launch: Launch, run: RunFolder, orders: Json, view: View, hands: World) -> Outcome:
    """Bring the run to an end. `orders` is what every attempt's launch.json also holds."""
    pause = _Backoff()
    while True:
        attempt = hands.adopt(run)
        ended_before = attempt is not None and not process.living_pids(attempt)
        if attempt is None:
            pause.wait(view.stop)
            attempt = hands.start(launch, run, orders | {"committed_before": run.committed()} | _failures_so_far(run))
            run.event("attempt_started", attempt=attempt.number, stood_by=attempt.stood_by)
        elif not ended_before:
            view.tell(f"adopted the living attempt {attempt.number} ({_pids(attempt)})")
            run.event("attempt_adopted", attempt=attempt.number)
        ending = hands.watch(attempt, run, _ticker(view, hands, launch))
        if ending.kind == "finished":
            return Outcome(ending, None, None)
        wreck = hands.collect(attempt, run, ending)
        diagnosis = diagnose_wreck(wreck, cards_of("failures"))
        if ending.kind == "interrupted" or view.stop():
            _record(run, wreck, diagnosis, None)
            if ended_before and not view.stop():
                continue  # stopped by an earlier command; this one was typed to go on
            return Outcome(ending, None, wreck)
        history = [*read_history(run), _past(wreck, diagnosis, launch)]
        decision = decide(wreck, diagnosis, history, launch)
        _record(run, wreck, diagnosis, decision)
        if decision.launch is None:
            return Outcome(ending, decision, wreck)
        view.tell(f"attempt {attempt.number}: {decision.reason}")
        launch = decision.launch
        pause.after(progressed=wreck.committed_after > wreck.committed_before)


def _ticker(view: View, hands: World, launch: Launch) -> process.Tick:
    def tick(attempt: Attempt) -> bool:
        view.tick(attempt)
        hands.stand_by(launch)
        return view.stop()

    return tick


def _pids(attempt: Attempt) -> str:
    return ", ".join(f"{role} {pid}" for role, pid in process.living_pids(attempt).items())


class _Backoff:
    """Wait longer between starts that come to nothing: 0.1 s, 0.2 s, ... 5 s; not at all after progress."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def after(self, progressed: bool) -> None:
        self.seconds = 0.0 if progressed else min(5.0, max(0.1, self.seconds * 2))

    def wait(self, stop: Callable[[], bool]) -> None:
        end = time.monotonic() + self.seconds
        while time.monotonic() < end and not stop():
            time.sleep(0.02)


def _record(run: RunFolder, wreck: Wreck, diagnosis: Diagnosis, decision: Decision | None) -> None:
    """Write everything about an ended attempt down before anything acts on it; wreck.json last, as it closes the attempt."""
    entry: dict[str, Any] = {"diagnosis": {"cause": diagnosis.cause, "confidence": diagnosis.confidence, "clues": diagnosis.words()}}
    if decision is not None:
        entry["decision"] = {"remedy": decision.remedy, "reason": decision.reason, "go_on": decision.launch is not None}
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
        settings = (read_json(run.attempt(number) / "launch.json") or {}).get("settings", {})
        progressed = wreck["committed_after"] > wreck["committed_before"]
        history.append(Past(wreck["diagnosis"]["cause"], wreck["ending"]["kind"], _frozen(settings), progressed))
    return history


def _failures_so_far(run: RunFolder) -> Json:
    """Attempts that died, and seconds in which attempts ran: what the checkpoint interval goes by."""
    wrecks = [wreck for number in run.attempts() if (wreck := read_json(run.attempt(number) / "wreck.json"))]
    endings = [wreck["ending"] for wreck in wrecks]
    failures = sum(ending["kind"] not in ("finished", "interrupted") for ending in endings)
    return {"failures": failures, "running_s": sum(ending.get("seconds") or 0.0 for ending in endings)}


def _past(wreck: Wreck, diagnosis: Diagnosis, launch: Launch) -> Past:
    return Past(diagnosis.cause, wreck.ending.kind, _frozen(launch.settings), wreck.committed_after > wreck.committed_before)


def _frozen(settings: dict[str, Any]) -> tuple[tuple[str, object], ...]:
    return tuple(sorted((name, str(value)) for name, value in settings.items()))
