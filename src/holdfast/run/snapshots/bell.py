"""A bell between trainer and checkpoint writer: a pin rings it, so the writer need not look all the while. Only Linux has one."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path


def hang_up(file: Path) -> socket.socket | None:
    """Bind the bell of the snapshots' file; readable after it was rung. None where the system has none, or another process holds it."""
    bell: socket.socket | None = None
    try:
        bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        bell.setblocking(False)
        bell.bind(_name(file))
        return bell
    except (AttributeError, OSError):
        if bell is not None:
            bell.close()
        return None


def notify(file: Path) -> None:
    """Wake who waits at the bell, if anybody does."""
    with contextlib.suppress(AttributeError, OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as caller:
        caller.setblocking(False)
        caller.sendto(b"\n", _name(file))


def silence(bell: socket.socket) -> None:
    """Take the rings so far."""
    with contextlib.suppress(OSError):
        while True:
            bell.recv(16)


def _name(file: Path) -> str:
    """Return the bell's name in Linux's abstract namespace, which leaves no file behind; the file's name has the run's id and folder."""
    return f"\0{file.name}"
