"""The state that a callback keeps in memory: where it lies, and the helper that makes a regular checkpoint of it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import zlib
from pathlib import Path

import orjson

from holdfast.base.safe_open import open_own
from holdfast.run.folder import RunFolder
from holdfast.run.snapshots.memory_places import SHARED_MEMORY, is_gone

_HELPER = Path(__file__).parents[2] / "callback" / "keep.py"
_DEADLINE_S = 300.0
_PAGE = 4096  # of the header, JSON up to its first 0 (callback/shared.py)


def snapshot_of(run: RunFolder) -> Path:
    """Return the file of this run's state: in shared memory, else in the run folder, whose pages outlive a killed process as well.

    One that is there already stays where it is, however much room there is now.
    """
    name = f"holdfast-command-{os.geteuid()}-{zlib.crc32(str(run.path).encode()):08x}.state"
    free = 0
    with contextlib.suppress(OSError):
        facts = os.statvfs(SHARED_MEMORY)
        free = facts.f_bavail * facts.f_frsize
    places = [folder / name for folder in (SHARED_MEMORY, run.path)]
    return next((place for place in places if place.exists()), places[0] if free > 1 << 28 else places[1])


def make_checkpoint(python: str, snapshot: Path, place: Path, newer_than: int) -> str:
    """Make a checkpoint of the state; return its name, empty where the state is no newer, else the reason why it could not be made."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PYTHONSAFEPATH": "1"}
    command = [python, str(_HELPER), str(snapshot), str(place), str(newer_than)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=_DEADLINE_S, env=environment, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the helper could not do it ({type(error).__name__})"
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"the helper ended with exit code {done.returncode}"])[-1][:300]
    return done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""


def sweep_snapshots() -> None:
    """Remove states of runs whose folders are gone."""
    for file in SHARED_MEMORY.glob(f"holdfast-command-{os.geteuid()}-*.state"):
        with contextlib.suppress(OSError, orjson.JSONDecodeError, KeyError, TypeError):
            with os.fdopen(open_own(file, os.O_RDONLY), "rb") as handle:
                owner = orjson.loads(handle.read(_PAGE).partition(b"\0")[0])["run"]
            if is_gone(Path(owner)):
                file.unlink()
