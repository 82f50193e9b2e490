"""Have a child process measure models: it holds torch, this one does not. Reads what it found; judges nothing."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from holdfast.base.child import NOTES, PROGRESS, trainer_command
from holdfast.base.errors import BLOCKED, Stop
from holdfast.base.file_errors import file_error_in
from holdfast.base.files import Json, read_json, read_lines, write_json
from holdfast.base.inert import inert
from holdfast.base.safe_open import read_end
from holdfast.base.units import span
from holdfast.base.wait import wait_for_end
from holdfast.export.samples import Samples
from holdfast.machine.system import usable_threads

Say = Callable[[str], None]
_END_BYTES = 1 << 16
_EVERY_S = 10.0  # between two lines
_LEAST = 0.05  # of the work, before it tells how long the rest takes


def _quiet(_text: str) -> None:
    pass


@dataclass(frozen=True)
class PartAnswer:
    """What one part of a request came to; None where it was not asked for."""

    facts: Json
    losses: npt.NDArray[np.float64] | None = None
    logits: npt.NDArray[np.float32] | None = None
    hidden: npt.NDArray[np.float32] | None = None


def measure(
    folder: Path, samples: Samples, parts: list[Json], env: Mapping[str, str], say: Say = _quiet, held: Json | None = None
) -> dict[str, PartAnswer]:
    """Have a child measure each part; return its answers by name. folder: an empty place for files; say: called with progress.

    held: the fewer bits of the base that will do where it does not fit on a card as it comes. Raises Stop(1) where it fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    samples.save(folder / "rows.npz")
    ask("measure", folder, {"rows": str(folder / "rows.npz"), "parts": parts, "held": held}, env, say)
    return {part["name"]: _read(folder, part["name"]) for part in parts}


def ask(job: str, folder: Path, request: Json, env: Mapping[str, str], say: Say = _quiet) -> None:
    """Have a job of the trainer do what the request says, into `folder`, and say how far it is.

    Raises Stop with what it wrote to error.json there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "request.json", request | {"out": str(folder), "threads": usable_threads()})
    with (folder / "output.log").open("wb") as log:
        code = follow(trainer_command(job, folder / "request.json"), log, env, say, folder / PROGRESS)
    if code:
        told = read_json(folder / "error.json") or {}
        if not told and (found := file_error_in(read_end(folder / "output.log", _END_BYTES))):
            raise found
        what = f"{told['part']}: {told['message']}" if told else f"exit code {code}: {_last_line(folder / 'output.log')}"
        hint = told.get("hint") or "holdfast diagnose reads such logs"
        raise Stop(told.get("code", BLOCKED), f"the model could not be measured ({what})", hint)
    for note in read_lines(folder / NOTES):
        print(inert(f"{note['part']}: {note['text']}"), file=sys.stderr, flush=True)


def _read(folder: Path, name: str) -> PartAnswer:
    arrays: dict[str, Any] = {}
    for kind in ("losses", "logits", "hidden"):
        file = folder / f"{name}.{kind}.npy"
        arrays[kind] = np.load(file, mmap_mode="r") if file.exists() else None
    return PartAnswer(read_json(folder / f"{name}.json") or {}, **arrays)


def _last_line(log: Path) -> str:
    return (log.read_text(errors="replace").strip().splitlines() or ["it printed nothing"])[-1][:300]


def follow(command: list[str], log: IO[bytes], env: Mapping[str, str], say: Say, file: Path, first: str = "loading torch") -> int:
    """Run the command and tell how far it is, every ten seconds in which that has changed; return its exit code.

    file: where it writes that; first: what it does while nothing is written there. Killed where this is interrupted.
    """
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=dict(env)) as child:
        try:
            began, said = (told := time.monotonic()), ""
            while child.poll() is None:
                wait_for_end([child.pid], _EVERY_S)
                now = time.monotonic()
                if child.poll() is None and now - told >= _EVERY_S:
                    told = now
                    if said != (said := so_far([*read_lines(file)], first, time.time())):
                        say(f"  {span(now - began)}: {said}")
        except BaseException:
            child.kill()
            raise
    return int(child.returncode)


def so_far(lines: list[Json], first: str, now: float) -> str:
    """Return in words what is being done, `first` where nothing is told yet. lines: {part, what, done, total, time}, oldest first.

    What has gone on for longer than all that was left has no time that is known: how long nothing was done is told instead.
    """
    if not lines:
        return first
    last = lines[-1]
    words = f"{last['part']}: {last['what']}"
    if not last["total"]:
        return words
    begun = next(line for line in lines if (line["part"], line["what"]) == (last["part"], last["what"]))
    done, took = last["done"] - begun["done"], last["time"] - begun["time"]
    words += f", {last['done']:,} of {last['total']:,}"
    if not 0 < last["done"] < last["total"] or done < _LEAST * last["total"]:
        return words
    left, waited = took / done * (last["total"] - last["done"]), max(0.0, now - last["time"])
    return f"{words}, about {span(left - waited)} left of that" if waited < left else f"{words}, the next for {span(waited)} by now"
