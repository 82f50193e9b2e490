"""Have files, folders and their names reach the disk: what was not flushed is gone after a power cut."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from holdfast.base.files import fsync_folder


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
    """Wait until all that a folder holds is on the disk, the folder itself and its name too. Links are not followed. Raises OSError."""
    for file in _regular_below(folder):
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
            _flush(file)
    for place, _, _ in os.walk(folder, topdown=False):
        with contextlib.suppress(FileNotFoundError):
            fsync_folder(Path(place))
    fsync_folder(folder.parent)


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
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
