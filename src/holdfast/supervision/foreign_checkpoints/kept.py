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


def start_helper(python: str) -> subprocess.Popen[str]:
    """Start the helper, which imports torch and waits for its order; it ends where its standard input is closed. Raises OSError."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PYTHONSAFEPATH": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [python, str(_HELPER)], stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment, start_new_session=True
    )


def make_checkpoint(python: str, snapshot: Path, place: Path, newer_than: int, helper: subprocess.Popen[str] | None = None) -> str:
    """Make a checkpoint of the state; return its name, empty where the state is no newer, else the reason why it could not be made.

    helper: one that waits, if any; it has ended then.
    """
    try:
        helper = helper if helper is not None and helper.poll() is None else start_helper(python)
    except OSError as error:
        return f"the helper could not do it ({type(error).__name__})"
    try:
        said, errors = helper.communicate(orjson.dumps([str(snapshot), str(place), newer_than]).decode(), timeout=_DEADLINE_S)
    except subprocess.TimeoutExpired as error:
        helper.kill()
        helper.communicate()
        return f"the helper could not do it ({type(error).__name__})"
    if helper.returncode:
        return (errors.strip().splitlines() or [f"the helper ended with exit code {helper.returncode}"])[-1][:300]
    return said.strip().splitlines()[-1] if said.strip() else ""


def sweep_snapshots() -> None:
    """Remove states of runs whose folders are gone."""
    for file in SHARED_MEMORY.glob(f"holdfast-command-{os.geteuid()}-*.state"):
        with contextlib.suppress(OSError, orjson.JSONDecodeError, KeyError, TypeError):
            with os.fdopen(open_own(file, os.O_RDONLY), "rb") as handle:
                owner = orjson.loads(handle.read(_PAGE).partition(b"\0")[0])["run"]
            if is_gone(Path(owner)):
                file.unlink()
