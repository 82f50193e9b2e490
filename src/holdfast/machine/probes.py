"""Have the probes run in a child that has torch, and keep good answers until the machine changes. What they mean, checks say."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
from pathlib import Path

import orjson

from holdfast.base.cache import cache_folder, read_kept, write_kept
from holdfast.base.child import trainer_command
from holdfast.base.files import Json
from holdfast.base.wait import doing

_DEADLINE_S = 60  # of one probe; the child as a whole has several times that
_CHILD_DEADLINE_S = 300


def read_probes(facts: Json, folder: Path) -> Json:
    """Run all probes and return {name: {outcome, ...}}. `folder`: where runs are kept; its disk is measured."""
    while not folder.is_dir():
        folder = folder.parent
    kept = _kept(facts, folder)
    answer = read_kept(kept)
    if answer is None:
        with doing(f"trying out what this machine computes, each probe {_DEADLINE_S} s at most"):
            answer = _run(folder)
        if all(probe.get("outcome") in ("ok", "absent") for probe in answer.values()):
            write_kept(kept, answer, durable=False)
    return answer


def kept_probes(facts: Json, folder: Path) -> Json:
    """Return what earlier probes of this machine found; empty where it was not probed, or has changed since."""
    while not folder.is_dir():
        folder = folder.parent
    return read_kept(_kept(facts, folder)) or {}


def _kept(facts: Json, folder: Path) -> Path | None:
    """Return the file of kept probes, by cards, drivers, kernel, torch, what steers them, and the disk."""
    steering = {name: value for name, value in facts.get("env", {}).items() if not name.startswith(("OMP_", "MKL_"))}
    parts = [facts.get(key) for key in ("gpus", "torch", "rocm", "cuda", "cpu")] + [facts["os"]["kernel"], steering, folder.stat().st_dev]
    cache = cache_folder(os.environ)
    return cache / f"probes-{hashlib.sha256(orjson.dumps(parts)).hexdigest()[:16]}.json" if cache else None


def _run(folder: Path) -> Json:
    command = trainer_command("probes", folder, _DEADLINE_S)
    try:
        done = subprocess.run(command, capture_output=True, timeout=_CHILD_DEADLINE_S, check=False)
    except subprocess.TimeoutExpired:
        return {"probes": {"outcome": "hung", "detail": f"no answer within {_CHILD_DEADLINE_S} s"}}
    with contextlib.suppress(orjson.JSONDecodeError, IndexError):
        answer = orjson.loads(done.stdout.splitlines()[-1])
        if isinstance(answer, dict):
            return answer
    last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
    return {"probes": {"outcome": "error", "detail": last[0][:400]}}
