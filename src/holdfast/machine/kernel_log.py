"""What the kernel says about a dead attempt: OOM kills of its control group, messages about memory, devices, disks. Interprets nothing."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from holdfast.machine import clock
from holdfast.machine.place import Place

MOST = 40  # newest messages that are kept
_CLOCKS_APART_S = 5.0  # the kernel's own clock against the system's
_RECORD_BYTES = 1 << 13
_JOURNAL_S = 5.0
_MATTERS = re.compile(
    r"oom[-_ ]|out of memory|killed process|amdgpu|kfd|gpu reset|nvrm|\bxid\b|nouveau|\bi915\b|hung task|blocked for more than"
    r"|i/o error|ext4-fs (?:error|warning)|xfs.*(?:error|corrupt)|btrfs.*error|\bmce\b|hardware error|edac|segfault at|general protection"
    r"|traps:|pcieport.*error|\baer\b|soft lockup|thermal|throttl",
    re.I,
)


def oom_kills(place: Place) -> int | None:
    """Count the processes of this process's control group that the kernel has ended for memory so far; None where it does not tell."""
    for line in (place.text("/proc/self/cgroup") or "").splitlines():
        number, controllers, name = line.split(":", 2)
        if number == "0" and not controllers:
            files = [f"/sys/fs/cgroup{name}/memory.events", "/sys/fs/cgroup/memory.events"]
        elif "memory" in controllers.split(","):
            files = [f"/sys/fs/cgroup/memory{name}/memory.oom_control", "/sys/fs/cgroup/memory/memory.oom_control"]
        else:
            continue
        for file in files:
            counted = re.search(r"^oom_kill (\d+)$", place.text(file) or "", re.M)
            if counted:
                return int(counted[1])
    return None


def kernel_messages(since: float, until: float | None = None, device: Path = Path("/dev/kmsg")) -> tuple[str, ...] | None:
    """Read the newest messages that matter between two times (seconds since the epoch; None: by now), oldest first.

    None where nobody may read them.
    """
    until = clock.now() if until is None else until
    found = _from_kmsg(device, since, until)
    if found is None:
        found = _from_journal(since, until)
    return None if found is None else tuple([text for text in found if _MATTERS.search(text)][-MOST:])


def _from_kmsg(device: Path, since: float, until: float) -> list[str] | None:
    booted = clock.now() - time.monotonic()
    try:
        descriptor = os.open(device, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        found = records(lambda: os.read(descriptor, _RECORD_BYTES))
        return [text for at, text in found if since - _CLOCKS_APART_S <= booted + at <= until + _CLOCKS_APART_S]
    finally:
        os.close(descriptor)


def records(read: Callable[[], bytes]) -> Iterator[tuple[float, str]]:
    """Yield (seconds since boot, text) of each record of the kernel's ring, oldest first. A `read` gives one, and fails after the last."""
    while True:
        try:
            record = read().decode(errors="replace")
        except BrokenPipeError:  # records were overwritten meanwhile: the next read goes on after them
            continue
        except OSError:  # no more
            return
        if not record:
            return
        head, _, text = record.partition(";")
        fields = head.split(",")
        if len(fields) > 2 and fields[2].isdigit():
            yield int(fields[2]) / 1e6, text.split("\n", 1)[0]


def _from_journal(since: float, until: float) -> list[str] | None:
    times = ["--since", f"@{since - _CLOCKS_APART_S:.0f}", "--until", f"@{until + _CLOCKS_APART_S:.0f}"]
    command = ["journalctl", "-k", "-q", "--no-pager", "-o", "cat", *times]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=_JOURNAL_S, stdin=subprocess.DEVNULL, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return told.stdout.splitlines() if told.returncode == 0 and told.stdout else None  # nothing: who may not read is told nothing, too
