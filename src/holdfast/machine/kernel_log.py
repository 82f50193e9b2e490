"""What the kernel says about a dead attempt: OOM kills of its control group, messages about memory, devices, disks. Interprets nothing."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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


def marks(place: Place, device: Path = Path("/dev/kmsg")) -> dict[str, Any]:
    """Return what tells later what the kernel has done since: {oom_kills, oom_group: whose, logged: when, by its own clock}.

    None is unknown.
    """
    kills, group = _oom_counter(place)
    ring = _ring(device)
    logged = None if ring is None else clock.of_this_boot(f"{ring[-1][0] if ring else 0.0:.6f}")
    return {"oom_kills": kills, "oom_group": group, "logged": logged}


def oom_kills_between(before: dict[str, Any], after: dict[str, Any]) -> int | None:
    """Count the processes of a control group that the kernel ended for memory between two `marks`.

    None where it does not tell, and where the groups are not one: those of two terminals, containers or boots.
    """
    was, now = before.get("oom_kills"), after.get("oom_kills")
    if was is None or now is None or before.get("oom_group", after.get("oom_group")) != after.get("oom_group") or now < was:
        return None
    return int(now - was)


def _oom_counter(place: Place) -> tuple[int | None, str | None]:
    """Return how many the kernel has ended so far, and what names the group that it counts for."""
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
                facts = place.path(file).parent.stat()
                return int(counted[1]), clock.of_this_boot(f"{facts.st_dev}:{facts.st_ino}")
    return None, None


def kernel_messages(
    since: float, until: float | None = None, device: Path = Path("/dev/kmsg"), logged: tuple[object, object] = (None, None)
) -> tuple[str, ...] | None:
    """Read the newest messages that matter between two times of the run's clock (None: by now), oldest first.

    None where nobody may read them. logged: the same times as `marks` told them: the kernel's clock drifts, and may stand still while the
    machine sleeps.
    """
    until = clock.now() if until is None else until
    found = _from_kmsg(device, since, until, logged)
    if found is None:
        found = _from_journal(since, until)
    return None if found is None else tuple([text for text in found if _MATTERS.search(text)][-MOST:])


def _from_kmsg(device: Path, since: float, until: float, logged: tuple[object, object]) -> list[str] | None:
    ring, ahead = _ring(device), clock.now() - time.monotonic()
    begin, end = (clock.number_of_this_boot(one) for one in logged)
    begin = since - ahead - _CLOCKS_APART_S if begin is None else begin
    end = until - ahead if end is None else end
    return None if ring is None else [text for at, text in ring if begin < at <= end + _CLOCKS_APART_S]


def _ring(device: Path) -> list[tuple[float, str]] | None:
    """Return what the kernel's ring holds, as `records` has it; None where this user may not read it."""
    try:
        descriptor = os.open(device, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        return list(records(lambda: os.read(descriptor, _RECORD_BYTES)))
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
    begin, end = clock.in_calendar(since) - _CLOCKS_APART_S, clock.in_calendar(until) + _CLOCKS_APART_S
    command = ["journalctl", "-k", "-q", "--no-pager", "-o", "cat", "--since", f"@{begin:.0f}", "--until", f"@{end:.0f}"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=_JOURNAL_S, stdin=subprocess.DEVNULL, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return told.stdout.splitlines() if told.returncode == 0 and told.stdout else None  # nothing: who may not read is told nothing, too
