"""Where memory files lie: their names, those of other ranks, and those that no run needs any more."""

from __future__ import annotations

import contextlib
import zlib
from pathlib import Path

from holdfast.run.snapshots.memory_file import owner_of

SHARED_MEMORY = Path("/dev/shm")


def abandoned(folder: Path) -> dict[Path, int]:
    """Return this user's memory files whose run folder is gone, with their bytes: of runs that were deleted unfinished.

    A folder is gone where the one it lay in is there, as seen from where the file was made: containers that share /dev/shm see none of
    each other's folders, and a disk that is not mounted is not empty.
    """
    found = {}
    for file in folder.glob("holdfast-*.rank*"):
        if (known := owner_of(file)) and is_gone(known[0]):
            found[file] = known[1]
    return found


def is_gone(owner: Path) -> bool:
    """True if a run folder is gone while the folder that it lay in is still there."""
    return owner.is_absolute() and owner.parent.is_dir() and not owner.exists()


def sweep(folder: Path) -> list[Path]:
    """Remove what `abandoned` finds; return what was removed."""
    removed = []
    for file in abandoned(folder):
        with contextlib.suppress(OSError):
            file.unlink()
            removed.append(file)
    return removed


def of_rank(place: Path, rank: int) -> Path:
    """Return the memory file of another rank than the first, beside that one's."""
    return place.with_suffix(f".rank{rank}")


def memory_places(run: Path, run_id: str, chosen: str | None, on_disk: bool) -> list[Path]:
    """Return files where a run's snapshot may lie, the preferred first: the folder of the config, /dev/shm, the run folder itself.

    `on_disk`: it must outlive a reboot, so not /dev/shm. A moved or copied run folder has other names here, so two runs never share a
    snapshot.
    """
    name = f"holdfast-{run_id[:12]}-{zlib.crc32(str(run).encode()):08x}.rank0"
    folders = [Path(chosen)] if chosen else [SHARED_MEMORY] if SHARED_MEMORY.is_dir() and not on_disk else []
    return [folder / name for folder in [*folders, run / "snapshot"]]
