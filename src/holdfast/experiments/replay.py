"""One trial of a run: a step replayed in a throw-away child that dies with its parent.

Changes nothing in the run; concludes nothing. In the trial's folder the child leaves reached.json with each step that it
has to compute first, running.json when it begins, outcome.json at its end.
"""

from __future__ import annotations

import ctypes
import math
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.base.child import trainer_command, with_env
from holdfast.base.files import Json, read_json, write_json
from holdfast.base.safe_open import open_log
from holdfast.base.signal_names import killed_by
from holdfast.base.wait import wait_for_end
from holdfast.config.settings import PartialSettings
from holdfast.processes.awake import Awake
from holdfast.processes.ending import end
from holdfast.run.attempt import read_launch_spec
from holdfast.run.folder import RunFolder
from holdfast.run.outcomes import exit_code
from holdfast.run.snapshots.memory_places import memory_places

START_S = 900.0  # until a child computes, or has computed another step on its way there
_PR_SET_PDEATHSIG = 1
_LOOK_S = 0.02
_AWAKE_S = 1.0  # between two looks: more was slept through
DEVICE_GONE = "the GPU is gone"


class TrialsSpent(Exception):
    """The budget of trials is used up, or the user wants to stop."""


@dataclass(frozen=True)
class TrialChange:
    """What a trial does differently from the run. Nothing at all is a change, too: it asks whether the failure was transient."""

    samples: tuple[int, ...] = ()
    settings: PartialSettings = field(default_factory=dict)
    env: dict[str, str | None] = field(default_factory=dict)
    trace: bool = False
    until: int | None = None  # train on through this step, with all samples
    since: int | None = None  # begin at this step and not at the one that fails; the state that was stored on the way is compared
    deterministic: bool = False  # with kernels that give the same bits each time, whichever the run has

    def changes(self) -> bool:
        """Return whether anything but the kernels differs from the run."""
        return bool(self.samples or self.settings or self.env)

    def key(self) -> str:
        """Return a text that is equal for changes that ask the same."""
        what = f"{sorted(self.samples)} {sorted(self.settings.items())} {sorted(self.env.items())}"
        return f"{what} {self.trace} {self.until} {self.since} {self.deterministic}"


def replay(run: RunFolder, step: int, change: TrialChange, environment: dict[str, str], deadline_s: float) -> Json:
    """Replay `step` under `change` in a child of its own; return the outcome as the command prints it. Raises Stuck."""
    folder = new_trial(run, step, change)
    began = time.monotonic()
    with open_log(folder / "output.log") as output:
        child = start_child(trainer_command("trial", run.path, folder), with_env(environment, change.env), output, subprocess.DEVNULL)
        try:
            ending = ending_of_child(child, folder, START_S, deadline_s)
        finally:
            end(child, "the trial")
    return conclude(folder, step, change, ending, time.monotonic() - began)


def new_trial(run: RunFolder, step: int, change: TrialChange) -> Path:
    """Make a folder under RUN/trials with the request in it."""
    folder, config = new_folder(run), run.config()
    request = {
        "step": step,
        "samples": list(change.samples),
        "settings": change.settings,
        "env": change.env,
        "trace": change.trace,
        "deterministic": change.deterministic,
        "until": change.until,
        "compare": change.since is not None,
        "attempt": max(run.attempts(), default=0) + int(folder.name),
        "memory_places": [str(place) for place in memory_places(run.path, run.id(), config.save.snapshot_dir, config.save.flush_snapshots)],
        "faults": _faults(run),
    }
    try:
        write_json(folder / "request.json", request)
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def answered(folder: Path) -> bool:
    """Return whether the child has begun with the trial, or said why it cannot: else it was never asked."""
    return any((folder / name).exists() for name in ("running.json", "outcome.json"))


def conclude(folder: Path, step: int, change: TrialChange, ending: str, seconds: float, process: int = 1) -> Json:
    """Put what came of a trial together; `ending` holds where the child left no outcome. process: the lab's how-manieth."""
    begun = read_json(folder / "running.json")  # where it crashed: which rows it was about
    failed = {"ending": ending, "finite": None, "loss": None, "grad_norm": None}
    outcome = read_json(folder / "outcome.json") or (begun or {}) | failed
    outcome = {"gradients_sha256": None, "weights_sha256": None, **outcome, "seconds_in_all": round(seconds, 3)}
    outcome |= {"begun": begun is not None, "process": process}
    changed = {"settings": change.settings, "env": change.env, "samples": list(change.samples) or None}
    result = {"step": step, "samples": list(change.samples) or None, **outcome, "changed": changed, "folder": str(folder)}
    write_json(folder / "trial.json", result)
    return result


def ending_of_child(child: subprocess.Popen[bytes], folder: Path, start_s: float, deadline_s: float) -> str:
    """Wait for a trial's end and return how it ended, or that it takes too long."""
    clock = Awake(_AWAKE_S).now
    since, sign = clock(), (False, 0)
    while not (folder / "outcome.json").exists():
        newest = _sign_of_life(folder)
        if newest != sign:
            since, sign = clock(), newest
        code = child.poll()
        if code is not None:
            return "finished" if (folder / "outcome.json").exists() else ending_of(code)
        running, _ = sign
        if clock() - since > (deadline_s if running else start_s):
            return f"no end after {deadline_s:.0f} s" if running else f"not ready after {start_s:.0f} s"
        wait_for_end((child.pid,), _LOOK_S)
    return "finished"


def _sign_of_life(folder: Path) -> tuple[bool, int]:
    """Return (whether the trial has begun, when its child last reached another of the steps before it)."""
    try:
        reached = (folder / "reached.json").stat().st_mtime_ns
    except FileNotFoundError:
        reached = 0
    return (folder / "running.json").exists(), reached


def start_child(command: list[str], environment: dict[str, str], output: Any, given: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=given,
        stdout=output,
        stderr=output,
        env=environment,
        preexec_fn=_die_with_parent if sys.platform == "linux" else None,
    )


def ending_of(code: int) -> str:
    if code == exit_code("device_gone"):
        return DEVICE_GONE
    return killed_by(code) if code < 0 else f"error, exit code {code}"


_OF_STEP = {"loss": "loss", "grad_norm": "gradient norm"}


def failure(outcome: Json) -> str:
    """Say how a trial failed."""
    if outcome["ending"] == "finished":
        named = [words for key, words in _OF_STEP.items() if (value := outcome.get(key)) is None or not math.isfinite(value)]
        return f"not finite: {outcome.get('damaged') or ' and '.join(named) or 'a trained weight'}"
    return str(outcome["ending"])


def new_folder(run: RunFolder) -> Path:
    """Make a new folder under RUN/trials."""
    run.trials.mkdir(exist_ok=True)
    number = max((int(entry.name) for entry in run.trials.iterdir() if entry.name.isdigit()), default=0) + 1
    while True:
        folder = run.trials / f"{number:03d}"
        try:
            folder.mkdir()
            return folder
        except FileExistsError:
            number += 1


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _faults(run: RunFolder) -> str | None:
    newest = run.attempts()
    orders = read_launch_spec(run.attempt(newest[-1])) if newest else None
    return str(orders.faults) if orders and orders.faults else None
