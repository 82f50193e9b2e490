"""A world without processes: attempts end as a script says, the lab answers as told, and no time passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from holdfast.base.files import Json, append_line, read_json, write_json
from holdfast.config.settings import Settings
from holdfast.diagnosis.divergence import Trouble
from holdfast.processes import process
from holdfast.processes.attempt import Attempt
from holdfast.run.folder import RunFolder
from holdfast.run.timeline import Entry, add_entry, read_timeline, settings_of_process
from holdfast.run.types import Diagnosis, Ending, EndingKind, FailureReport, Launch, Verdict
from holdfast.supervision.supervise import RunResult, View, supervise
from holdfast.supervision.training.trainer_run import TrainerRun

Point = Literal["before the start", "in the pause", "while it trains", "at its wreck", "in the lab"]
SETTINGS = {"steps": 400, "samples": 8, "micro_batch_tokens": 400, "threads": 1, "attention": "sdpa", "device": "cuda"}
STEP_S = 10.0
USUAL = 2.0  # the loss of a step nobody says more about


@dataclass(frozen=True)
class Ends:
    """How one scripted attempt ends: after `losses` committed steps, in `step` (0: before its first)."""

    kind: EndingKind
    code: int | None = None
    losses: Sequence[float] = ()
    step: int | None = None  # the one after the last committed
    facts: Json = field(default_factory=dict)
    deaf: bool = False  # asked to stop, it ends as it would have
    failure_report: Json = field(default_factory=dict)  # what else is found


class Clock:
    """Nobody waits: sleeping moves the time on. `asleep`: is told of it; `slept`: seconds so far."""

    def __init__(self, asleep: Callable[[], None]) -> None:
        self.now, self.slept, self.asleep = 0.0, 0.0, asleep

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float, /) -> None:
        self.now += seconds
        self.slept += seconds
        self.asleep()


class FakeWorld:
    """Plays a script of endings. `stop_at`: where somebody asks to stop; `living`: attempts that another supervisor left alive."""

    def __init__(self, script: Sequence[Ends], verdicts: Sequence[Verdict] = (), stop_at: Point | None = None) -> None:
        self.script: Iterator[Ends] = iter(script)
        self.verdicts = iter(verdicts)
        self.stop_at = stop_at
        self.asked = stop_at == "before the start"
        self.alive: set[int] = set()
        self.launches: list[Launch] = []
        self.orders: list[Json] = []
        self.trials: list[str] = []
        self.clock = Clock(lambda: self._reach("in the pause"))
        self._ended: Ends | None = None

    def _reach(self, point: Point) -> None:
        self.asked = self.asked or self.stop_at == point

    def adopt(self, run: RunFolder) -> Attempt | None:
        return process.adopt(run)

    def living(self, attempt: Attempt) -> dict[str, int]:
        return {"trainer": 4711} if attempt.number in self.alive else {}

    def start(self, launch: Launch, run: RunFolder, orders: Json) -> Attempt:
        self.launches.append(launch)
        self.orders.append(orders)
        return left_behind(run, orders, launch.settings)

    def stand_by(self, launch: Launch) -> None: ...

    def watch(self, attempt: Attempt, run: RunFolder, tick: process.Tick) -> Ending:
        ends = self._ended = next(self.script, None)
        assert ends is not None, f"attempt {attempt.number} is one more than the script has"
        for loss in ends.losses:
            commit(run, attempt.number, loss)
            self.clock.now += STEP_S
        self._reach("while it trains")
        if tick(attempt) and not ends.deaf:
            return Ending("interrupted", 130, 1.0)
        return Ending(ends.kind, ends.code, 1.0, ends.facts)

    def collect(self, attempt: Attempt, run: RunFolder, ending: Ending) -> FailureReport:
        assert self._ended is not None
        self._reach("at its wreck")
        launch = read_json(attempt.folder / "launch.json") or {}
        committed = run.committed()
        step = committed + 1 if self._ended.step is None else self._ended.step or None
        facts: Json = {"phase": "step", "samples": (1, 2), "lines": (), "died": self.clock.now}
        facts |= {"memory_available_bytes": 8 << 30, "disk_free_bytes": 8 << 30} | self._ended.failure_report
        before = launch["committed_before"]
        return FailureReport(attempt.number, ending, step, committed_before=before, committed_after=committed, **facts)

    def investigate(
        self, launch: Launch, run: RunFolder, failure_report: FailureReport, diagnosis: Diagnosis, deaths: int, view: View[Attempt]
    ) -> Verdict:
        return self._answer(f"step {failure_report.step}")

    def investigate_course(self, launch: Launch, run: RunFolder, trouble: Trouble, to: int, view: View[Attempt]) -> Verdict:
        return self._answer(f"the course since step {trouble.onset}, from step {to}")

    def _answer(self, asked: str) -> Verdict:
        self.trials.append(asked)
        self._reach("in the lab")
        verdict = next(self.verdicts, None)
        assert verdict is not None, f"the lab was asked about {asked}, and the script has no answer"
        return verdict


@dataclass(frozen=True)
class Told:
    """What became of a scripted run."""

    run: RunFolder
    outcome: RunResult
    world: FakeWorld
    said: list[str]

    @property
    def end(self) -> str:
        """finished, stopped or gave up, as the command line concludes."""
        if self.outcome.ending.kind == "finished":
            return "finished"
        return "stopped" if self.outcome.move is None else "gave up"

    @property
    def remedies(self) -> list[str | None]:
        """What was decided after each attempt that left a failure report; None: nothing, because the user stopped it."""
        failure_reports = (read_json(self.run.attempt(number) / "wreck.json") for number in self.run.attempts())
        return [failure_report.get("decision", {}).get("remedy") for failure_report in failure_reports if failure_report]

    def events(self, kind: str) -> list[Json]:
        return [event for event in self.run.events() if event["event"] == kind]


def new_run(folder: Path, **run: Any) -> RunFolder:
    """A prepared run of 400 steps; keyword arguments are keys of the config's `run`."""
    folder.mkdir()
    made = RunFolder(folder)
    tree = {"model": "m", "data": {"files": ["f"]}, "run": run}
    made.config_file.write_text(yaml.safe_dump(tree))
    made.write_id("r")
    add_entry(made.timeline_file, Entry(1, SETTINGS, "the plan"))
    return made


def commit(run: RunFolder, attempt: int, loss: float = USUAL) -> None:
    """Journal one step."""
    row = {"step": run.committed() + 1, "loss": loss, "grad_norm": 1.0, "lr": 1e-4, "samples": [1, 2], "seconds": 1.0}
    append_line(run.steps_file, row | {"attempt": attempt, "time": 0.0})


def left_behind(run: RunFolder, orders: Json, settings: Settings) -> Attempt:
    """An attempt that was written down, whoever watches it."""
    number = max(run.attempts(), default=0) + 1
    folder = run.attempt(number)
    folder.mkdir(parents=True)
    write_json(folder / "launch.json", {"env": {}, "settings": settings.as_json(), "started": 0.0, **orders})
    return Attempt(number, folder, None)


def relaunch(run: RunFolder) -> Launch:
    settings = settings_of_process(read_timeline(run.timeline_file))
    return Launch(("trainer",), settings.env, settings)


def play(run: RunFolder, world: FakeWorld) -> Told:
    """Supervise the run in this world to its end."""
    said: list[str] = []
    view: View[Attempt] = View(lambda _: None, said.append, lambda: world.asked)
    orders = {"session": "s", "memory_places": [str(run.path / "memory")], "faults": None}
    return Told(run, supervise(TrainerRun(relaunch, run, orders, view, world)), world, said)


def verdict(kind: str, **facts: Any) -> Verdict:
    """An answer of the lab after three trials."""
    return Verdict(kind, 3, 1.0, "seen", **facts)
