"""Lock files: which process may do what in a run folder. The kernel frees a lock when its holder dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from holdfast.core.safe_open import lock_descriptor


@contextlib.contextmanager
def hold(lock: Path, wait: bool) -> Iterator[bool]:
    """Hold a lock file exclusively; yields whether it could be had."""
    descriptor = lock_descriptor(lock)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(descriptor)


def taken(lock: Path) -> bool:
    """Whether some process holds a lock file, on whatever machine. Creates nothing. Raises OSError when the file cannot be read.

    To ask, the lock is shared for an instant; whoever takes one has to try for more than that instant.
    """
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
