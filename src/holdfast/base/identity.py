"""Who a process is: pid, start time and boot. Standard library only, because the shim uses it too."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TypedDict, TypeGuard

from holdfast.base.errors import BLOCKED, Stop


class Identity(TypedDict):
    """A pid alone is reused; with its start time (clock ticks since boot) and the boot's id it names one process for ever."""

    pid: int
    start: str
    boot: str


def identify(pid: int) -> Identity | None:
    """Return the identity of a living process; None when there is none (a zombie is dead)."""
    start = _start_time(pid)
    return None if start is None else {"pid": pid, "start": start, "boot": boot_id()}


def myself() -> Identity:
    """Return the identity of this process. Raises Stop(1) where the system does not tell it."""
    me = identify(os.getpid())
    if me is None:
        text = "/proc is not mounted, or does not show this process: without it nobody can tell whether a run is alive"
        raise Stop(BLOCKED, text, "mount -t proc proc /proc (in a container or chroot: start it with /proc), then repeat the command")
    return me


def alive(identity: object) -> TypeGuard[Identity]:
    """True if this names a process that lives. A value from a file may be anything."""
    pid = identity.get("pid") if isinstance(identity, dict) else None
    return type(pid) is int and pid > 0 and identify(pid) == identity


def command_of(pid: int) -> str:
    """Return the command line of a process in short, empty where it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()[:120]
    except OSError:
        return ""


def boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as handle:
            return handle.read().strip()
    except OSError:
        return "unknown"


def _start_time(pid: int) -> str | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as handle:
            fields = handle.read().rpartition(b")")[2].split()
    except FileNotFoundError:
        return _start_time_without_proc(pid) if not Path("/proc/self").is_dir() else None
    except (ProcessLookupError, PermissionError):
        return None
    return None if fields[0] in (b"Z", b"X") else fields[19].decode()


def _start_time_without_proc(pid: int) -> str | None:
    """Return the start time in seconds that `ps` gives on macOS."""
    listed = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout.strip()
    return None if not listed or listed.startswith("Z") else listed.split(None, 1)[-1]
