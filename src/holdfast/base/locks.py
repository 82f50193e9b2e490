"""Lock files: which process may do what in a run folder. The kernel frees a lock when its holder dies."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from holdfast.base.errors import BLOCKED, Stop
from holdfast.base.identity import command_of
from holdfast.base.safe_open import lock_descriptor

_DEADLINE_S = 900.0  # the longest that a lock is held which others wait for: while a checkpoint is written
_TOLD_AFTER_S, _LOOK_S = 10.0, 0.02
Tell = Callable[[str], None]


@contextlib.contextmanager
def hold(lock: Path, wait: bool, tell: Tell | None = None) -> Iterator[bool]:
    """Hold a lock file exclusively; yields whether it could be had.

    wait: for a quarter of an hour; `tell` is told who holds it when that takes long. Raises Stop(1) at the end of it.
    """
    descriptor = lock_descriptor(lock)
    try:
        yield _took(lock, descriptor) or (wait and _waited(lock, descriptor, tell))
    finally:
        os.close(descriptor)


def _took(lock: Path, descriptor: int, how: int = fcntl.LOCK_EX) -> bool:
    """Take a lock if it is free. Raises OSError, ENOLCK with the lock's name where its file system knows no locks."""
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        number = errno.ENOLCK if error.errno in (errno.ENOSYS, errno.EOPNOTSUPP) else error.errno
        raise OSError(number, os.strerror(number or 0), str(lock)) from error
    return True


def _waited(lock: Path, descriptor: int, tell: Tell | None) -> bool:
    began = time.monotonic()
    while not _took(lock, descriptor):
        waited = time.monotonic() - began
        if waited > _DEADLINE_S:
            raise Stop(BLOCKED, f"{lock} is still held after {waited:.0f} s, by {_who(lock)}", "end that process, then repeat the command")
        if tell is not None and waited > _TOLD_AFTER_S:
            tell(f"waiting for {lock}, held by {_who(lock)}")
            tell = None
        time.sleep(_LOOK_S)
    return True


def taken(lock: Path) -> bool:
    """True if some process holds a lock file, on whatever machine. Creates nothing. Raises OSError when the file cannot be read.

    A link is no lock of ours: none is ever taken through one.
    To ask, the lock is shared for an instant; whoever takes one has to try for more than that instant.
    """
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            return False
        raise
    try:
        return not _took(lock, descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def holds(pid: int, lock: Path) -> bool:
    """True if a process of this machine holds a lock file, itself or by inheritance. A file may name any process; the kernel does not err.

    Where there is no /proc (macOS), nothing can be seen and True is the answer.
    """
    if not Path("/proc/self/fd").is_dir():
        return True
    try:
        wanted = lock.lstat()
        descriptors = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:  # gone, or another user's
        return False
    return any(_locks(descriptor, wanted) for descriptor in descriptors)


def _locks(descriptor: Path, wanted: os.stat_result) -> bool:
    try:
        facts = descriptor.stat()
        if (facts.st_dev, facts.st_ino) != (wanted.st_dev, wanted.st_ino):
            return False
        text = (descriptor.parents[1] / "fdinfo" / descriptor.name).read_text(errors="replace")
    except OSError:
        return False
    return "FLOCK" in text


def _who(lock: Path) -> str:
    """Return the processes that hold a lock, in words."""
    pids = [int(entry.name) for entry in Path("/proc").glob("[0-9]*")] if Path("/proc/self/fd").is_dir() else []
    found = [f"process {pid} ({command_of(pid) or '?'})" for pid in pids if pid != os.getpid() and holds(pid, lock)]
    return ", ".join(found) or "a process that cannot be seen from here"
