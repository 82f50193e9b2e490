"""Run one trial: a step of a run, replayed in a throw-away child that dies with its parent. Changes nothing in the run."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.core.files import Json, read_json, write_json
from holdfast.core.memoryfile import memory_places
from holdfast.core.run import RunFolder

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Change:
    """What a trial does differently from the run. Nothing at all is a change, too: it asks whether the failure was transient."""

    samples: tuple[int, ...] = ()
    settings: dict[str, object] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)


def replay(run: RunFolder, step: int, change: Change, environment: dict[str, str]) -> Json:
    """Replay `step` under `change`; the outcome in the form of contracts: ending, finite, loss, grad_norm, hashes, seconds."""
    folder = _new_folder(run)
    config = run.config()
    request = {
        "step": step,
        "samples": list(change.samples),
        "settings": change.settings,
        "env": change.env,
        "attempt": max(run.attempts(), default=0) + int(folder.name),
        "memory_places": [str(place) for place in memory_places(run.path, run.id(), config.save.snapshot_dir, config.save.flush_snapshots)],
        "faults": _faults(run),
    }
    write_json(folder / "request.json", request)
    began = time.monotonic()
    code = _run_child(run, folder, environment | change.env)
    outcome = read_json(folder / "outcome.json") or {"ending": _ending(code), "finite": None, "loss": None, "grad_norm": None}
    outcome = {"gradients_sha256": None, "weights_sha256": None, **outcome, "seconds_in_all": round(time.monotonic() - began, 3)}
    changed = {"settings": change.settings, "env": change.env, "samples": list(change.samples) or None}
    result = {"step": step, "samples": list(change.samples) or None, **outcome, "changed": changed, "folder": str(folder)}
    write_json(folder / "trial.json", result)
    return result


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


def _run_child(run: RunFolder, folder: Path, environment: dict[str, str]) -> int:
    with (folder / "output.log").open("ab") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", "holdfast.trainer", "trial", str(run.path), str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )
        return child.wait()


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _faults(run: RunFolder) -> str | None:
    newest = run.attempts()
    launch = read_json(run.attempt(newest[-1]) / "launch.json") if newest else None
    return launch.get("faults") if launch else None


def _ending(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"error, exit code {code}"
