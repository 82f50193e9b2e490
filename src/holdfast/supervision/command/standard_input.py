"""What a command is given as its standard input: a file, which each start of it can read anew, or nothing."""

from __future__ import annotations

import fcntl
import os
import select
import stat
import struct
import termios
from pathlib import Path

from holdfast.base.errors import USAGE, Stop

_MOMENT_MS = 300  # for the first bytes of a program that writes into our standard input


def given_input() -> tuple[str | None, int]:
    """Return the file that is our standard input and the offset in it; (None, 0) where it is empty, closed or a terminal.

    Raises Stop(2) for what could not be read a second time: a pipe with data, a file that has no name any more.
    """
    try:
        facts = os.fstat(0)
    except OSError:
        return None, 0
    if stat.S_ISREG(facts.st_mode):
        at, name = os.lseek(0, 0, os.SEEK_CUR), str(Path("/proc/self/fd/0").readlink())
        if at >= facts.st_size:
            return None, 0
        if not _is_still(name, facts):
            raise _refused("is a file that has no name any more")
        return name, at
    if stat.S_ISFIFO(facts.st_mode) or stat.S_ISSOCK(facts.st_mode):
        waiting = select.poll()
        waiting.register(0, select.POLLIN)
        waiting.poll(_MOMENT_MS)
        if has_data(0):
            raise _refused("is a pipe with data in it")
    return None, 0


def has_data(descriptor: int) -> bool:
    """True if a pipe or a socket holds unread bytes; False for anything else."""
    try:
        mode = os.fstat(descriptor).st_mode
        if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
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
