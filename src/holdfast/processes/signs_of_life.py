"""Whether a process that is no trainer still does anything: what the kernel counts of it. Ends nothing.

A process that waits in a loop wakes now and then, one that works takes time or moves bytes. One of which nothing is counted any more
was stopped, or waits for a disk or a lock that never comes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from holdfast.processes.awake import Awake

_LOOK_MOST_S = 2.0
_STOPPED = b"T"


class SignsOfLife:
    """One process, looked at again and again; silent_s() in seconds that the watcher was awake for, 0 where the kernel counts nothing."""

    def __init__(self, pid: int, counts: Callable[[int], tuple[int, ...] | None] | None = None, clock: Callable[[], float] | None = None):
        self.pid, self._counts, self._clock = pid, counts or counted, clock or Awake(_LOOK_MOST_S).now
        self._seen, self._since = self._counts(pid), self._clock()
        self._counted = any(self._seen or ())

    def begin(self) -> None:
        """Begin to listen: what went before is no silence, it had nothing to do."""
        self.silent_s()
        self._since = self._clock()

    def silent_s(self) -> float:
        """Return seconds since anything was counted. One of which nothing ever was is not judged: not every kernel counts."""
        now, seen = self._clock(), self._counts(self.pid)
        if seen is None or seen != self._seen:
            self._counted = self._counted or any(seen or ())
            self._seen, self._since = seen, now
        return now - self._since if self._counted else 0.0


def counted(pid: int) -> tuple[int, ...] | None:
    """Return processor time, switches and bytes of a process so far; None where it is gone, or there is no /proc."""
    folder = Path(f"/proc/{pid}")
    try:
        fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()
        switches = [line.split()[1] for line in (folder / "status").read_bytes().splitlines() if b"ctxt_switches" in line]
    except OSError:
        return None
    return tuple(int(number) for number in (*fields[11:13], *switches))


def is_stopped(pid: int) -> bool:
    """True if a process was stopped (SIGSTOP, a terminal's Ctrl-Z) and not woken since."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] == _STOPPED
    except OSError:
        return False
