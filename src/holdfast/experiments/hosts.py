"""The children that serve a lab's trials: one loaded model each, a living one at a time. Counts nothing, concludes nothing."""

from __future__ import annotations

import contextlib
import errno
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.base.child import trainer_command, with_env
from holdfast.base.disk import MOST_S, has_room, wait_for_room
from holdfast.base.files import Json, is_full, read_json
from holdfast.base.inert import brief
from holdfast.base.safe_open import open_log
from holdfast.base.units import counted
from holdfast.experiments.replay import (
    DEVICE_GONE,
    START_S,
    TrialChange,
    TrialsSpent,
    answered,
    conclude,
    ending_of_child,
    failure,
    new_trial,
    start_child,
)
from holdfast.processes.ending import end
from holdfast.processes.pauses import Pauses
from holdfast.run.folder import RunFolder


class Host:
    """A child that serves many trials with one loaded model. After a crash, a hang or an error on a GPU it is gone."""

    def __init__(self, run: RunFolder, environment: dict[str, str], job: str = "trials") -> None:
        run.trials.mkdir(exist_ok=True)
        self.log = run.trials / "host.log"
        with open_log(self.log) as output:
            self.child = start_child(trainer_command(job, run.path), environment, output, subprocess.PIPE)

    def alive(self) -> bool:
        return self.child.poll() is None

    def ask(self, folder: Path, start_s: float, deadline_s: float) -> str:
        """Have one trial done; return how it ended. Raises Stuck.

        `start_s`: patience until it computes, `deadline_s`: until it is done.
        """
        said = self.log.stat().st_size
        assert self.child.stdin is not None
        try:
            self.child.stdin.write(f"{folder}\n".encode())
            self.child.stdin.flush()
            ending = ending_of_child(self.child, folder, start_s, deadline_s)
        except OSError:
            ending = "the trial's process could not be asked"
        if ending != "finished" or (read_json(folder / "outcome.json") or {}).get("leaving"):
            self.close()  # and wait: the next one needs the memory that this one has on the device
        with self.log.open("rb") as handle, open_log(folder / "output.log") as own:
            handle.seek(said)
            own.write(handle.read())
        return ending

    def close(self) -> None:
        """End the child and close its input. Raises Stuck."""
        end(self.child, "a trial's process")
        if self.child.stdin is not None:
            with contextlib.suppress(OSError):  # what it was asked last may lie there still
                self.child.stdin.close()


class Hosts:
    """The children of one step's trials, by environment. `deadline_s`: for one step of a trial."""

    def __init__(
        self,
        run: RunFolder,
        step: int,
        environment: dict[str, str],
        deadline_s: float,
        tell: Callable[[str], None],
        stop: Callable[[], bool],
    ) -> None:
        self.run, self.step, self.environment = run, step, environment
        self.deadline_s, self.tell, self.stop = deadline_s, tell, stop
        self.living: dict[str, Host] = {}
        self.started = 0

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, *_: object) -> None:
        for host in self.living.values():
            host.close()

    def replay(self, change: TrialChange) -> Json:
        """Try the step under a change; return the outcome, kept under RUN/trials. Raises TrialsSpent, Stuck, OSError."""
        waited_s = 0.0
        while (result := self._on_a_disk_with_room(change)) is None:
            waited_s += self._wait_for_room()
        loss = "" if result["loss"] is None else f", loss {result['loss']:.4g}"
        came = f"goes through{loss}" if result["finite"] else failure(result)
        self.tell(brief(f"trial {Path(result['folder']).name}: {_words(change)}: {came}"))
        return result | {"waited_s": waited_s}

    def _on_a_disk_with_room(self, change: TrialChange) -> Json | None:
        """Run a trial and return its outcome; None where it failed and the run's disk is full: that says nothing about the step."""
        began, first = time.monotonic(), change.since or self.step
        steps = 1 if change.until is None else change.until - first + 1
        folder = None
        try:
            folder = new_trial(self.run, first, change)
            ending = self._asked(folder, change, self.deadline_s * steps)
            result = conclude(folder, first, change, ending, time.monotonic() - began, self.started)
            if result["ending"] == "finished" or has_room(self.run.path):
                return result
        except OSError as error:
            if not is_full(error):
                raise
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        return None

    def _wait_for_room(self) -> float:
        """Wait until trials can be written; return the seconds it took.

        Raises TrialsSpent where the user wants to stop, OSError where there is no room for too long.
        """
        began = time.monotonic()
        self.tell(f"the disk of {self.run.path} is full: trials wait until there is room, {MOST_S:.0f} s at most")
        there_is = wait_for_room(self.run.path, self.stop)
        if self.stop():
            raise TrialsSpent
        if not there_is:
            raise OSError(errno.ENOSPC, f"no room for trials within {MOST_S:.0f} s", str(self.run.path))
        self.tell("the disk has room again: trials go on")
        return time.monotonic() - began

    def _asked(self, folder: Path, change: TrialChange, deadline_s: float) -> str:
        """Return how a trial ended. Its process may be gone before it begins, for a reason of its own: then it is asked once more.

        Where that finds no GPU it is asked again and again.
        """

        def ask() -> str:
            ending = self._of(change.env).ask(folder, START_S, deadline_s)
            if ending == DEVICE_GONE or answered(folder):
                return ending
            return self._of(change.env).ask(folder, START_S, deadline_s)

        return Pauses(self.run, self.tell).until_found(ask, DEVICE_GONE, "a trial found no GPU", self.stop)

    def _of(self, env: dict[str, str | None]) -> Host:
        """Return the living child of this environment; end those of others, because a device has room for one."""
        key = str(sorted(env.items()))
        for other in [name for name, host in self.living.items() if name != key or not host.alive()]:
            self.living.pop(other).close()
        if key not in self.living:
            self.living[key] = Host(self.run, with_env(self.environment, env))
            self.started += 1
        return self.living[key]


def _words(change: TrialChange) -> str:
    parts = [counted(len(change.samples), "sample")] if change.samples else ["the step"]
    if change.until is not None:
        parts = [f"the steps {f'from {change.since} ' if change.since else ''}up to {change.until}"]
    parts += [f"{name} = {value}" for name, value in (change.settings | change.env).items()]
    return ", ".join(parts)
