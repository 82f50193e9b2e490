"""What a command is given as its standard input: a file, which each start of it can read anew, a pipe's bytes, kept in one, or nothing."""

from __future__ import annotations

import fcntl
import os
import select
import stat
import struct
import termios
from pathlib import Path

from holdfast.base.errors import USAGE, Stop
from holdfast.base.files import write_bytes
from holdfast.base.units import gib

KEPT = "stdin"  # in a run folder: what came through a pipe
MOST_KEPT = 64 << 20  # bytes
_MOMENT_MS = 300  # for the first bytes of a program that writes into our standard input
_PAUSE_MS = 60_000  # between two of its bytes
_CHUNK = 1 << 20


def given_input() -> tuple[str | None, int, bytes]:
    """Return the file that is our standard input, the offset in it, a pipe's bytes; (None, 0, b"") where it is empty or a terminal.

    Raises Stop(2) for what could not be given a second time: a pipe of more than MOST_KEPT bytes or without an end, a file without a name.
    """
    try:
        facts = os.fstat(0)
    except OSError:
        return None, 0, b""
    if stat.S_ISREG(facts.st_mode):
        at, name = os.lseek(0, 0, os.SEEK_CUR), str(Path("/proc/self/fd/0").readlink())
        if at >= facts.st_size:
            return None, 0, b""
        if not _is_still(name, facts):
            raise _refused("is a file that has no name any more")
        return name, at, b""
    if _is_pipe(facts) and _comes(_MOMENT_MS) and (data := _read_pipe()):
        return KEPT, 0, data
    return None, 0, b""


def keep(data: bytes, folder: Path) -> None:
    """Write a pipe's bytes into a run folder, for its user alone. Raises OSError."""
    write_bytes(folder / KEPT, data)
    (folder / KEPT).chmod(0o600)


def _comes(within_ms: int) -> bool:
    """Return whether bytes, or an end, came within that time."""
    waiting = select.poll()
    waiting.register(0, select.POLLIN)
    return bool(waiting.poll(within_ms))


def _read_pipe() -> bytes:
    """Read our standard input to its end. Raises Stop(2) where that is too far away."""
    data = bytearray()
    while chunk := os.read(0, _CHUNK):
        data += chunk
        if len(data) > MOST_KEPT:
            raise _refused(f"is a pipe with more than {gib(MOST_KEPT)} in it")
        if not _comes(_PAUSE_MS):
            raise _refused(f"is a pipe that gave {len(data):,} bytes and did not end within {_PAUSE_MS // 1000} s")
    return bytes(data)


def _is_pipe(facts: os.stat_result) -> bool:
    return stat.S_ISFIFO(facts.st_mode) or stat.S_ISSOCK(facts.st_mode)


def has_data(descriptor: int) -> bool:
    """True if a pipe or a socket holds unread bytes; False for anything else."""
    try:
        if not _is_pipe(os.fstat(descriptor)):
            return False
        return bool(struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"\0" * 4))[0])
    except OSError:
        return False


def _is_still(name: str, facts: os.stat_result) -> bool:
    try:
        return os.path.samestat(Path(name).stat(), facts)
    except OSError:
        return False


def _refused(what: str) -> Stop:
    text = f"standard input {what}: a command that is started again could not read it a second time"
    return Stop(USAGE, text, "write it to a file and give that: holdfast run -- ... < FILE; where the command reads nothing: < /dev/null")
