"""What ended a process: the name of the signal in words, and whether it was its limit of CPU time. Standard library only."""

from __future__ import annotations

import resource
import signal
from typing import Any

_MARGIN_S = 1.0  # the kernel looks at each tick of its clock


def killed_by(number: int) -> str:
    """Name a signal by its number (negative as in an exit code, too): killed by SIGKILL; killed by signal 40."""
    try:
        return f"killed by {signal.Signals(abs(number)).name}"
    except ValueError:  # most real-time signals
        return f"killed by signal {abs(number)}"


def ended_by(code: int) -> str:
    """Say how a process ended by its exit code: was killed by SIGKILL; has ended with exit code 1."""
    return f"was {killed_by(code)}" if code < 0 else f"has ended with exit code {code}"


def children_s() -> float:
    """Return the CPU seconds of all children of this process that have ended and were waited for, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def at_limit(code: int | None, cpu_s: float) -> dict[str, Any]:
    """Return {cpu_limit_s} where the kernel ended a child that used up what it may of the CPU; {} else. code: of its end, a shell's too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    number = 0 if code is None else -code if code < 0 else code - 128
    limit = soft if number == signal.SIGXCPU else hard if number == signal.SIGKILL else resource.RLIM_INFINITY
    return {"cpu_limit_s": limit} if limit != resource.RLIM_INFINITY and cpu_s > limit - _MARGIN_S else {}
