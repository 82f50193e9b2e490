"""Have a child process measure models: it holds torch, this one does not. Reads what it found; judges nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.base.child import NOTES, trainer_command
from holdfast.base.errors import BLOCKED, Stop
from holdfast.base.files import Json, read_json, read_lines, write_json
from holdfast.base.inert import inert
from holdfast.export.samples import Samples
from holdfast.machine.system import usable_threads


@dataclass(frozen=True)
class Found:
    """What one part of a request came to; None where it was not asked for."""

    facts: Json
    losses: npt.NDArray[np.float64] | None = None
    logits: npt.NDArray[np.float32] | None = None
    hidden: npt.NDArray[np.float32] | None = None


def measure(folder: Path, samples: Samples, parts: list[Json], env: Mapping[str, str]) -> dict[str, Found]:
    """What the child found of each part, by its name. `folder`: an empty place for the two to meet. Raises Stop(1) where it fails."""
    folder.mkdir(parents=True, exist_ok=True)
    samples.save(folder / "rows.npz")
    ask("measure", folder, {"rows": str(folder / "rows.npz"), "parts": parts}, env)
    return {part["name"]: _read(folder, part["name"]) for part in parts}


def ask(job: str, folder: Path, request: Json, env: Mapping[str, str]) -> None:
    """Have a job of the trainer do what the request says, into `folder`. Raises Stop with what it wrote to error.json there."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "request.json", request | {"out": str(folder), "threads": usable_threads()})
    with (folder / "output.log").open("wb") as log:
        command = trainer_command(job, folder / "request.json")
        nothing = subprocess.DEVNULL
        code = subprocess.run(command, stdin=nothing, stdout=log, stderr=log, env=dict(env), check=False).returncode
    if code:
        told = read_json(folder / "error.json") or {}
        what = f"{told['part']}: {told['message']}" if told else f"exit code {code}: {_last_line(folder / 'output.log')}"
        hint = told.get("hint") or "holdfast diagnose reads such logs"
        raise Stop(told.get("code", BLOCKED), f"the model could not be measured ({what})", hint)
    for note in read_lines(folder / NOTES):
        print(inert(f"{note['part']}: {note['text']}"), file=sys.stderr, flush=True)


def _read(folder: Path, name: str) -> Found:
    arrays: dict[str, Any] = {}
    for kind in ("losses", "logits", "hidden"):
        file = folder / f"{name}.{kind}.npy"
        arrays[kind] = np.load(file, mmap_mode="r") if file.exists() else None
    return Found(read_json(folder / f"{name}.json") or {}, **arrays)


def _last_line(log: Path) -> str:
    return (log.read_text(errors="replace").strip().splitlines() or ["it printed nothing"])[-1][:300]
