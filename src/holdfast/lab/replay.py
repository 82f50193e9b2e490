"""One trial of a run: a step replayed in a throw-away child that dies with its parent. Changes nothing in the run; concludes nothing."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.core.files import Json, read_json, write_json
from holdfast.core.memoryfile import memory_places
from holdfast.core.run import RunFolder
from holdfast.core.wait import wait_for_end

_PR_SET_PDEATHSIG = 1
_LOOK_S = 0.02


@dataclass(frozen=True)
class Change:
    """What a trial does differently from the run. Nothing at all is a change, too: it asks whether the failure was transient."""

    samples: tuple[int, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str | None] = field(default_factory=dict)
    trace: bool = False
    until: int | None = None  # train on through this step, with all samples
    since: int | None = None  # begin at this step and not at the one that fails; the state that was stored on the way is compared

    def key(self) -> str:
        """The same for changes that ask the same."""
        return f"{sorted(self.samples)} {sorted(self.settings.items())} {sorted(self.env.items())} {self.trace} {self.until} {self.since}"


def replay(run: RunFolder, step: int, change: Change, environment: dict[str, str]) -> Json:
    """Replay `step` under `change` in a child of its own; the outcome in the form of contracts."""
    folder = new_trial(run, step, change)
    began = time.monotonic()
    with (folder / "output.log").open("ab") as output:
        child = start_child(["trial", str(run.path), str(folder)], with_env(environment, change.env), output, subprocess.DEVNULL)
        code = child.wait()
    return conclude(folder, step, change, ending_of(code), time.monotonic() - began)


def new_trial(run: RunFolder, step: int, change: Change) -> Path:
    """A folder under RUN/trials with the request in it."""
    folder, config = _new_folder(run), run.config()
    request = {
        "step": step,
        "samples": list(change.samples),
        "settings": change.settings,
        "env": change.env,
        "trace": change.trace,
        "until": change.until,
        "compare": change.since is not None,
        "attempt": max(run.attempts(), default=0) + int(folder.name),
        "memory_places": [str(place) for place in memory_places(run.path, run.id(), config.save.snapshot_dir, config.save.flush_snapshots)],
        "faults": _faults(run),
    }
    write_json(folder / "request.json", request)
    return folder


def conclude(folder: Path, step: int, change: Change, ending: str, seconds: float) -> Json:
    """Put what came of a trial together; `ending` holds where the child left no outcome."""
    begun = read_json(folder / "running.json") or {}  # where it crashed: which rows it was about
    outcome = read_json(folder / "outcome.json") or begun | {"ending": ending, "finite": None, "loss": None, "grad_norm": None}
    outcome = {"gradients_sha256": None, "weights_sha256": None, **outcome, "seconds_in_all": round(seconds, 3)}
    changed = {"settings": change.settings, "env": change.env, "samples": list(change.samples) or None}
    result = {"step": step, "samples": list(change.samples) or None, **outcome, "changed": changed, "folder": str(folder)}
    write_json(folder / "trial.json", result)
    return result


class Host:
    """A child that serves many trials with one loaded model. After a crash or a hang it is gone."""

    def __init__(self, run: RunFolder, environment: dict[str, str]) -> None:
        run.trials.mkdir(exist_ok=True)
        self.log = run.trials / "host.log"
        with self.log.open("ab") as output:
            self.child = start_child(["trials", str(run.path)], environment, output, subprocess.PIPE)

    def alive(self) -> bool:
        return self.child.poll() is None

    def ask(self, folder: Path, start_s: float, deadline_s: float) -> str:
        """Have one trial done; how it ended. `start_s`: patience until it computes, `deadline_s`: until it is done."""
        began, said = time.monotonic(), self.log.stat().st_size
        assert self.child.stdin is not None
        try:
            self.child.stdin.write(f"{folder}\n".encode())
            self.child.stdin.flush()
        except OSError:
            return "the trial's process could not be asked"
        running: float | None = None
        while not (folder / "outcome.json").exists():
            now = time.monotonic()
            if running is None and (folder / "running.json").exists():
                running = now
            if not self.alive():
                ending = ending_of(self.child.wait())
                break
            if now - (began if running is None else running) > (start_s if running is None else deadline_s):
                ending = f"no end after {deadline_s:.0f} s" if running is not None else f"not ready after {start_s:.0f} s"
                self.close()
                break
            wait_for_end((self.child.pid,), _LOOK_S)
        else:
            ending = "finished"
        with self.log.open("rb") as handle:
            handle.seek(said)
            (folder / "output.log").write_bytes(handle.read())
        return ending

    def close(self) -> None:
        self.child.kill()
        self.child.wait()
        if self.child.stdin is not None:
            self.child.stdin.close()


def start_child(arguments: list[str], environment: dict[str, str], output: Any, given: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "holdfast.trainer", *arguments],
        stdin=given,
        stdout=output,
        stderr=output,
        env=environment,
        preexec_fn=_die_with_parent if sys.platform == "linux" else None,
    )


def with_env(environment: Mapping[str, str], changes: dict[str, str | None]) -> dict[str, str]:
    """An environment with changes (None: unset)."""
    return {name: value for name, value in {**environment, **changes}.items() if value is not None}


def ending_of(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"error, exit code {code}"


def _new_folder(run: RunFolder) -> Path:
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
    launch = read_json(run.attempt(newest[-1]) / "launch.json") if newest else None
    return launch.get("faults") if launch else None
