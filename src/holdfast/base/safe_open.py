"""Open what may have been put there by somebody else: no links are followed, nothing is waited for. Standard library only."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

LARGEST_TEXT = 1 << 24  # bytes of a config, a template, a card
_UNWRITABLE = (errno.EROFS, errno.EACCES, errno.EIO, errno.EFBIG, errno.ENOSPC, errno.EDQUOT)
LARGEST_JSON = 1 << 28  # bytes; the index of the largest models has a few millions


def log_descriptor(path: Path, anew: bool = False) -> int:
    """Open a log of ours to append to, or to begin `anew`; return its descriptor. Raises OSError (ELOOP) where a link has its name."""
    how = os.O_TRUNC if anew else os.O_APPEND
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | how, 0o644)


def journal_descriptor(path: Path, flags: int = os.O_RDWR | os.O_CREAT) -> int:
    """Open a journal to read and append to; return its descriptor. Raises OSError (ELOOP, EINVAL) where no regular file has its name."""
    descriptor = os.open(path, flags | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "is not a regular file", str(path))


def open_log(path: Path, anew: bool = False) -> BinaryIO:
    """Open a log as `log_descriptor` does, as a file."""
    return os.fdopen(log_descriptor(path, anew), "wb")


def supervisor_log(log: Path, why: str) -> int:
    """Open a supervisor's log at its end, with a line that says since when and why it is written; a descriptor."""
    descriptor = log_descriptor(log)
    with contextlib.suppress(OSError):  # a full disk
        os.write(descriptor, f"--- {time.strftime('%F %T')} {why}\n".encode())
    return descriptor


def lock_descriptor(path: str | Path) -> int:
    """Open a lock file, made where there is none; return its descriptor. Raises OSError (ELOOP) where a link has its name.

    On a file system that takes nothing one that is there can be locked all the same.
    """
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)


def open_own(path: Path, flags: int) -> int:
    """Open a regular file that this user alone may write, no link, no file of another; return its descriptor. Raises OSError."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
    facts = os.fstat(descriptor)
    if stat.S_ISREG(facts.st_mode) and facts.st_uid == os.geteuid() and not facts.st_mode & 0o022:
        return descriptor
    os.close(descriptor)
    raise PermissionError(errno.EPERM, "is not this user's own file", str(path))


class _FileToRead(io.FileIO):
    """A file to read, whose errors say which it is; the system's name none."""

    def __init__(self, descriptor: int, path: Path) -> None:
        super().__init__(descriptor, "rb")
        self._path = path

    def readinto(self, buffer: Any, /) -> int:
        with naming(self._path):
            return super().readinto(buffer)

    def readall(self) -> bytes:
        with naming(self._path):
            return super().readall()


@contextlib.contextmanager
def naming(path: Path, instead_of: Path | None = None) -> Iterator[None]:
    """Let an OSError that names no file, as those of descriptors do, name this one; so, too, where it names `instead_of`."""
    try:
        yield
    except OSError as error:
        if error.filename is None or error.filename == str(instead_of):
            error.filename = str(path)
        raise


def open_regular(path: Path, most_bytes: int = 1 << 62) -> BinaryIO:
    """Open a regular file for reading. Raises OSError where it is none (a pipe, a device, a folder) or larger than that."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    facts = os.fstat(descriptor)
    if stat.S_ISREG(facts.st_mode) and facts.st_size <= most_bytes:
        return io.BufferedReader(_FileToRead(descriptor, path))
    os.close(descriptor)
    if stat.S_ISREG(facts.st_mode):
        raise OSError(errno.EFBIG, f"has {facts.st_size:,} bytes, {most_bytes:,} at most are read", str(path))
    if stat.S_ISDIR(facts.st_mode):
        raise IsADirectoryError(errno.EISDIR, "is a folder", str(path))
    raise OSError(errno.EINVAL, "is not a regular file", str(path))


def read_end(path: Path, most_bytes: int) -> str:
    """Return the text of a file's last bytes; empty where it cannot be read."""
    try:
        with open_regular(path) as handle:
            handle.seek(max(0, os.fstat(handle.fileno()).st_size - most_bytes))
            return handle.read(most_bytes).decode(errors="replace")
    except OSError:
        return ""


def read_small(path: Path, most_bytes: int = LARGEST_TEXT) -> bytes:
    """Read the bytes of a regular file. Raises OSError as `open_regular` does."""
    with open_regular(path, most_bytes) as handle:
        return handle.read()
