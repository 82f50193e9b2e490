"""Run one command and account for everything it started: seconds, CPU seconds, memory, and CPU time as it went. Knows no trainer.

The caller becomes the reaper of orphans (Linux), so that a process which leaves its parent is still waited for and counted.
"""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

PERIOD_S = 0.1
_SET_CHILD_SUBREAPER = 36
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass
class Usage:
    """What a command and all its descendants used. `began` is a wall-clock time; `cpu` pairs such times with CPU seconds so far."""

    code: int = -1
    began: float = 0.0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    largest_bytes: int = 0  # most memory ever resident in one of the processes, as the kernel kept it (ru_maxrss)
    together_bytes: int = 0  # most memory resident in all of them at one time, sampled; shared pages count in each
    cpu: list[tuple[float, float]] = field(default_factory=list)

    def cpu_at(self, moment: float) -> float:
        """CPU seconds used until `moment`, between two samples in proportion."""
        at = bisect.bisect_left(self.cpu, (moment,))
        if at == 0:
            return 0.0
        if at == len(self.cpu):
            return self.cpu[-1][1]
        (t0, c0), (t1, c1) = self.cpu[at - 1], self.cpu[at]
        return c0 + (c1 - c0) * (moment - t0) / (t1 - t0)


def measure(command: list[str], environment: dict[str, str], log: Path, timeout_s: float, folder: Path | None = None) -> Usage:
    """Run `command` to its end, its output in `log`; -9 as exit code when it took longer than `timeout_s`."""
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    usage = Usage(began=time.time())
    begun = time.monotonic()
    with log.open("wb") as output:
        first = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, cwd=folder)
    seen: dict[int, float] = {}
    while _reap(first, usage):
        _sample(usage, seen)
        if time.monotonic() - begun > timeout_s:
            for process in _descendants(os.getpid()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        time.sleep(PERIOD_S)
    return usage


def _reap(first: subprocess.Popen[bytes], usage: Usage) -> bool:
    """Wait for whatever has ended; False when nothing is left. Wall time ends with the first process."""
    while True:
        try:
            process, status, used = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if process == 0:
            return True
        usage.cpu_s += used.ru_utime + used.ru_stime
        usage.largest_bytes = max(usage.largest_bytes, used.ru_maxrss * 1024)
        if process == first.pid:
            usage.code = first.returncode = os.waitstatus_to_exitcode(status)
            usage.wall_s = time.time() - usage.began


def _sample(usage: Usage, seen: dict[int, float]) -> None:
    resident = 0
    for process in _descendants(os.getpid()):
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            resident += int(Path(f"/proc/{process}/statm").read_text().split()[1]) * _PAGE
        except (OSError, IndexError):
            continue
        seen[process] = (int(fields[11]) + int(fields[12])) * _TICK_S
    usage.together_bytes = max(usage.together_bytes, resident)
    usage.cpu.append((time.time(), sum(seen.values())))


def _descendants(parent: int) -> list[int]:
    found: list[int] = []
    waiting = [parent]
    while waiting:
        process = waiting.pop()
        for children in Path(f"/proc/{process}/task").glob("*/children"):
            try:
                waiting += (more := [int(child) for child in children.read_text().split()])
            except OSError:
                continue
            found += more
    return found
