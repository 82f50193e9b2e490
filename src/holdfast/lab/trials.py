"""The trials of one failing step: run in a child, counted, remembered, kept under RUN/trials. Concludes nothing from them."""

from __future__ import annotations

import errno
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from holdfast.core.config.settings import Settings
from holdfast.core.files import Json, is_full, read_json, read_lines
from holdfast.core.run.checkpoint import checkpoint_steps, next_valid
from holdfast.core.run.folder import RunFolder
from holdfast.core.types import Verdict
from holdfast.core.units import counted
from holdfast.lab.replay import DEVICE_GONE, START_S, Change, Host, answered, conclude, new_trial
from holdfast.mind.course import FROM_THE_START, WIDTH
from holdfast.world.child import with_env
from holdfast.world.ending import Stuck
from holdfast.world.pauses import Pauses
from holdfast.world.room import MOST_S, has_room, wait_for_room

MOST_SECONDS = 3600.0
_STATES = 3  # older states that are tried


class Spent(Exception):
    """The budget of trials is used up, or the user wants to stop."""


class NoAnswer(Exception):
    """A trial of what the run itself does could not be begun, so it says nothing about the step. The message: why."""


class Lab:
    """The trials of one failing step: counted, cached by what they ask, kept under RUN/trials."""

    processes = 0  # that were started for the trials

    def __init__(
        self,
        run: RunFolder,
        step: int,
        environment: dict[str, str],
        settings: Settings,
        deadline_s: float,
        tell: Callable[[str], None],
        stop: Callable[[], bool],
    ) -> None:
        self.run, self.step, self.environment, self.settings = run, step, environment, settings
        self.deadline_s, self.tell, self.stop = deadline_s, tell, stop
        self.trials, self.most_trials = 0, trials_left(run, step)
        self.goes_back = run.config().run.rollback  # whether committed steps may be trained again at a lower rate
        self.unchanged: list[bool] = []  # whether the step failed, each time it was tried as it was
        self.began = time.monotonic()
        self.known: dict[str, Json] = {}
        self.hosts: dict[str, Host] = {}

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: object) -> None:
        for host in self.hosts.values():
            host.close()

    @property
    def exact(self) -> bool:
        """Whether the same trial gives the same bits: not so with most GPU runs' kernels, which trials use as well."""
        return self.settings.deterministic

    def fails(self, change: Change, anew: bool = False) -> bool:
        """Whether the step fails under `change`; asked once, or again with `anew`.

        Raises Spent, NoAnswer, Stuck.
        """
        return not self.outcome(change, anew)["finite"]

    def fails_unchanged(self, suspects: Sequence[int]) -> bool:
        """Try the step as it was, once more."""
        self.unchanged.append(self.fails(Change(tuple(suspects)), anew=True))
        return self.unchanged[-1]

    def odds(self) -> tuple[int, int] | None:
        """How often the step failed as it was, of how many trials; None where it was not tried."""
        return (sum(self.unchanged), len(self.unchanged)) if self.unchanged else None

    def outcome(self, change: Change, anew: bool = False) -> Json:
        key = change.key()
        if anew or key not in self.known:
            self.known[key] = self._replay(change)
        return self.known[key]

    def older_states(self, at: int) -> list[int]:
        """Steps before `at` whose state is on disk and whole, newest first; last the beginning, where it is near."""
        found: list[int] = []
        steps = [step for step in checkpoint_steps(self.run) if step < at]
        while steps and len(found) < _STATES:
            checkpoint, _ = next_valid(self.run, steps)
            if checkpoint is None:
                break
            found.append(checkpoint.step)
            steps = [step for step in steps if step < checkpoint.step]
        return [*found, *([0] if 0 < at <= FROM_THE_START else [])]

    def losses(self) -> list[tuple[int, float]]:
        """(step, loss) of the steps committed before this one."""
        return [(row["step"], row["loss"]) for row in self.run.steps() if row["step"] < self.step and row["loss"] is not None]

    def accused(self) -> int:
        """Steps, among the last before this one, whose rows were put in quarantine."""
        return len({row["step"] for row in read_lines(self.run.quarantine_file) if self.step - WIDTH < row["step"] < self.step})

    def verdict(self, kind: str, evidence: str, **facts: Any) -> Verdict:
        """What the trials so far have shown."""
        facts |= {"odds": self.odds(), "processes": self.processes}
        return Verdict(kind, self.trials, round(self.seconds(), 1), evidence, **facts)

    def seconds(self) -> float:
        return time.monotonic() - self.began

    def _replay(self, change: Change) -> Json:
        if self.trials >= self.most_trials or self.seconds() > MOST_SECONDS or self.stop():
            raise Spent
        self.trials += 1
        while (answer := self._on_a_disk_with_room(change)) is None:
            self._wait_for_room()
        folder, ending, result = answer
        loss = "" if result["loss"] is None else f", loss {result['loss']:.4g}"
        self.tell(f"trial {folder.name}: {_words(change)}: {f'goes through{loss}' if result['finite'] else failure(result)}")
        if ending == DEVICE_GONE or not (result["begun"] or change.settings or change.env):
            raise NoAnswer(f"a trial could not be begun: {failure(result)}")
        return result

    def _on_a_disk_with_room(self, change: Change) -> tuple[Path, str, Json] | None:
        """Folder, ending and result of a trial; None where it failed and the run's disk is full: that says nothing about the step."""
        began, first = time.monotonic(), change.since or self.step
        steps = 1 if change.until is None else change.until - first + 1
        folder = None
        try:
            folder = new_trial(self.run, first, change)
            ending = self._asked(folder, change, self.deadline_s * steps)
            result = conclude(folder, first, change, ending, time.monotonic() - began, self.processes)
            if result["ending"] == "finished" or has_room(self.run.path):
                return folder, ending, result
        except OSError as error:
            if not is_full(error):
                raise
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        return None

    def _wait_for_room(self) -> None:
        """Wait until trials can be written. Raises Spent where the user wants to stop, OSError where there is no room for too long."""
        began = time.monotonic()
        self.tell(f"the disk of {self.run.path} is full: trials wait until there is room, {MOST_S:.0f} s at most")
        there_is = wait_for_room(self.run.path, self.stop)
        self.began += time.monotonic() - began
        if self.stop():
            raise Spent
        if not there_is:
            raise OSError(errno.ENOSPC, f"no room for trials within {MOST_S:.0f} s", str(self.run.path))
        self.tell("the disk has room again: trials go on")

    def _asked(self, folder: Path, change: Change, deadline_s: float) -> str:
        """How a trial ended. Its process may be gone before it begins, for a reason of its own: then it is asked once more.

        Where that finds no GPU it is asked again and again.
        """

        def ask() -> str:
            ending = self._host(change.env).ask(folder, START_S, deadline_s)
            if ending == DEVICE_GONE or answered(folder):
                return ending
            return self._host(change.env).ask(folder, START_S, deadline_s)

        return Pauses(self.run, self.tell).until_found(ask, DEVICE_GONE, "a trial found no GPU", self.stop)

    def sources(self, samples: Sequence[int]) -> tuple[str, ...]:
        """The rows, as file:line, of samples that took part in a trial."""
        return tuple(str(self.fact(one, "sources")) for one in samples)

    def fact(self, sample: int, name: str) -> Any:
        """A fact about a sample from any trial it took part in."""
        outcomes = (outcome for outcome in self.known.values() if name in outcome and sample in outcome["samples"])
        return next((outcome[name][outcome["samples"].index(sample)] for outcome in outcomes), None)

    def _host(self, env: dict[str, str | None]) -> Host:
        """The living child of this environment; one of another is let go, because a device has room for one."""
        key = str(sorted(env.items()))
        for other in [name for name, host in self.hosts.items() if name != key or not host.alive()]:
            self.hosts.pop(other).close()
        if key not in self.hosts:
            self.hosts[key] = Host(self.run, with_env(self.environment, env))
            self.processes += 1
        return self.hosts[key]


def concluded(lab: Lab, experiments: Callable[[], Verdict]) -> Verdict:
    """What the experiments show, with every process of the lab gone; or that one of them cannot be ended."""
    try:
        with lab:
            return experiments()
    except Stuck as stuck:
        return lab.verdict("stuck", str(stuck))


def trials_left(run: RunFolder, step: int) -> int:
    """What is left of the trials of a step, which all its investigations share since the run was last given up or stopped."""
    spent = 0
    for number in run.attempts():
        wreck = read_json(run.attempt(number) / "wreck.json") or {}
        if wreck and not wreck.get("decision", {}).get("go_on"):
            spent = 0
        elif wreck.get("step") == step:
            spent += (wreck.get("verdict") or {}).get("trials", 0)
    return max(0, run.config().run.trials - spent)


def _words(change: Change) -> str:
    parts = [counted(len(change.samples), "sample")] if change.samples else ["the step"]
    if change.until is not None:
        parts = [f"the steps {f'from {change.since} ' if change.since else ''}up to {change.until}"]
    parts += [f"{name} = {value}" for name, value in (change.settings | change.env).items()]
    return ", ".join(parts)


def failure(outcome: Json) -> str:
    """How a trial failed, in words."""
    if outcome["ending"] == "finished":
        return f"not finite: {outcome.get('damaged') or 'loss {loss}, gradient norm {grad_norm}'.format(**outcome)}"
    return str(outcome["ending"])
