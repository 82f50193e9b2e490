"""Whether a disk takes bytes, judged by writing, since a quota shows in no figure; having what was written reach it; names of one file.

What was not flushed, a file, a folder or its name, is gone after a power cut.
"""

from __future__ import annotations

import contextlib
import os
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from holdfast.base.files import fsync_folder, is_full
from holdfast.base.safe_open import naming

MOST_S = 300.0  # that is waited for room
_LOOK_S = 0.25
_BYTES = 1 << 18  # that have to find room


def has_room(folder: Path) -> bool:
    """True if files in `folder` can grow by a quarter of a mebibyte. Raises OSError for other reasons."""
    probe = folder / f".room.{os.getpid()}.tmp"
    try:
        with probe.open("wb", buffering=0) as handle:
            written = handle.write(bytes(_BYTES))
            os.fsync(handle.fileno())
        return written == _BYTES
    except OSError as error:
        if not is_full(error):
            raise
        return False
    finally:
        probe.unlink(missing_ok=True)


def wait_for_room(folder: Path, stop: Callable[[], bool]) -> bool:
    """Wait until there is room, at most MOST_S seconds or until `stop`; return whether there is."""
    until = time.monotonic() + MOST_S
    while not has_room(folder):
        if time.monotonic() > until or stop():
            return False
        time.sleep(_LOOK_S)
    return True


def flush_files(files: Iterable[Path]) -> None:
    """Wait until these files are on the disk, with their names; one that is not there is passed over. Raises OSError."""
    folders = set()
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            _flush(file)
            folders.add(file.parent)
    for folder in folders:
        fsync_folder(folder)


def flush_tree(folder: Path) -> None:
    """Wait until all that a folder holds is on the disk, the folder itself and its name too. Links are not followed.

    Raises the first OSError of flushing, once everything else is flushed.
    """
    refused: list[OSError] = []
    for flush, place in _to_flush(folder):
        try:
            flush(place)
        except FileNotFoundError:  # removed meanwhile
            continue
        except OSError as error:
            refused.append(error)
    if refused:
        raise refused[0]


def _to_flush(folder: Path) -> Iterator[tuple[Callable[[Path], None], Path]]:
    """Yield files first, then the folders from within, then the one above: a name is flushed behind what it names."""
    yield from ((_flush, file) for file in _regular_below(folder))
    yield from ((fsync_folder, Path(place)) for place, _, _ in os.walk(folder, topdown=False))
    yield fsync_folder, folder.parent


def make_folders(folder: Path, mode: int = 0o777) -> None:
    """Make a folder, of this mode, and those above it that are missing; after a power cut they are there. Raises OSError."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    for one in reversed(missing):
        one.mkdir(mode if one == folder else 0o777, exist_ok=True)
        fsync_folder(one.parent)


def _regular_below(folder: Path) -> Iterator[Path]:
    for place, _, names in os.walk(folder):
        for name in names:
            file = Path(place, name)
            if file.is_file() and not file.is_symlink():
                yield file


def _flush(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        with naming(file):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def place_of(path: str | Path) -> object:
    """Return what all names of one file have in common, be it there or not: links to it, and case where its folder tells none apart."""
    real = Path(os.path.realpath(path))
    if _tells_no_case(real.parent):
        return unicodedata.normalize("NFC", str(real)).casefold()
    try:
        facts = real.stat()
    except OSError:
        return str(real)
    return facts.st_dev, facts.st_ino


def _tells_no_case(folder: Path) -> bool:
    """True if names that differ in case alone are one file there (macOS, most sticks and shares), as a name that is there shows."""
    for place in (folder, *folder.parents):
        with contextlib.suppress(OSError):
            names = {entry.name for entry in place.iterdir()}
            for name in names:
                if name.isascii() and name.swapcase() not in names:  # as it is where it has no letter
                    return os.path.lexists(place / name.swapcase())
    return False
