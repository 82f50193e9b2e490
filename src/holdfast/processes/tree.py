"""The processes below a process. Standard library only, because the shim uses it too."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

_PROC = Path("/proc")


def below(pid: int) -> list[int]:
    """List its living descendants, nearest first; zombies are dead. Empty where there is no /proc."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir(_PROC) if _PROC.is_dir() else ():  # noqa: PTH208  (a thousand paths, twice a second)
        if entry.isdigit() and (fields := _stat(int(entry))) and fields[0] not in ("Z", "X"):
            children.setdefault(int(fields[1]), []).append(int(entry))
    found, ahead = [], [pid]
    while ahead:
        ahead = [child for parent in ahead for child in children.get(parent, ())]
        found += ahead
    return found


def bearing(name: str, value: str) -> list[int]:
    """List the processes that were started with NAME=VALUE in their environment, as far as that may be read; ours is none of them."""
    wanted, found = f"{name}={value}".encode(), []
    for entry in os.listdir(_PROC) if _PROC.is_dir() else ():  # noqa: PTH208
        with contextlib.suppress(OSError):
            if entry.isdigit() and int(entry) != os.getpid() and wanted in (_PROC / entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry))
    return found


def cpu_seconds(pids: list[int]) -> float:
    """Return the CPU seconds of these processes so far, and of their children that ended and were collected."""
    tick = os.sysconf("SC_CLK_TCK")
    return sum(sum(map(int, fields[11:15])) for pid in pids if (fields := _stat(pid))) / tick


def bytes_read(pids: Iterable[int], from_disks: bool = False) -> int:
    """Return the bytes these processes have read so far, from files and elsewhere; from_disks: mapped files, too, but nothing from memory.

    0 where that may not be known.
    """
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError, IndexError, ValueError):
            total += int((_PROC / str(pid) / "io").read_text().split()[9 if from_disks else 1])
    return total


def waits_in(pid: int) -> dict[str, str]:
    """Read the state of a process and where in the kernel it waits, as far as that may be read."""
    found = {}
    if fields := _stat(pid):
        found["state"] = fields[0]
    with contextlib.suppress(OSError):
        found["wchan"] = (_PROC / str(pid) / "wchan").read_text().strip()
    return found


def _stat(pid: int) -> list[str]:
    """Read the fields of /proc/PID/stat from the state on; empty where it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as handle:
            return handle.read().decode(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
