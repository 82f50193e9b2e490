"""Whether a disk takes bytes, and waiting until it does. Judges by writing, since a quota shows in no figure."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.base.files import is_full

MOST_S = 300.0  # that is waited for room
_LOOK_S = 0.25
_BYTES = 1 << 18  # that have to find room


def has_room(folder: Path) -> bool:
    """Whether files in `folder` can grow by a quarter of a mebibyte. Raises OSError for other reasons."""
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
    """Wait until there is room, at most MOST_S seconds or until `stop`; whether there is."""
    until = time.monotonic() + MOST_S
    while not has_room(folder):
        if time.monotonic() > until or stop():
            return False
        time.sleep(_LOOK_S)
    return True
