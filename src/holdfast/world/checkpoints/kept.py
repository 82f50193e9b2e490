"""The state that a callback keeps in memory: where it lies, and the helper that makes a regular checkpoint of it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import zlib
from pathlib import Path

from holdfast.core.run.folder import RunFolder

SHARED_MEMORY = Path("/dev/shm")
_HELPER = Path(__file__).parents[2] / "inside" / "keep.py"
_DEADLINE_S = 300.0
_PAGE = 4096


def snapshot_of(run: RunFolder) -> Path:
    """The file of this run's state: in shared memory, else in the run folder, whose pages a killed process leaves behind as well."""
    name = f"holdfast-command-{os.geteuid()}-{zlib.crc32(str(run.path).encode()):08x}.state"
    free = 0
    with contextlib.suppress(OSError):
        facts = os.statvfs(SHARED_MEMORY)
        free = facts.f_bavail * facts.f_frsize
    return SHARED_MEMORY / name if free > 1 << 28 else run.path / name


def make_checkpoint(python: str, snapshot: Path, place: Path, newer_than: int) -> str:
    """The name of the checkpoint that was made, empty where the state is no newer; else the reason why it could not be."""
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
        with contextlib.suppress(OSError):
            owner = file.read_bytes()[:_PAGE].partition(b'"run": "')[2].partition(b'"')[0].decode(errors="replace")
            if owner and not Path(owner).exists():
                file.unlink()
