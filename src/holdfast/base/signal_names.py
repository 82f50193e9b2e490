"""What ended a process: the name of the signal in words, and the limits of this process that it had as well. Standard library only."""

from __future__ import annotations

import resource
import signal
from typing import Any

_MARGIN_S = 1.0  # the kernel looks at each tick of its clock
LIMITS = ("cpu_limit_s", "address_space_bytes")


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
    """Return the limits that may have ended a child, by their names in LIMITS. code: of its end, a shell's too.

    cpu_limit_s: the kernel ended it after what it may use of the CPU; address_space_bytes: it failed, and may have had no more than that.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    number = 0 if code is None else -code if code < 0 else code - 128
    limit = soft if number == signal.SIGXCPU else hard if number == signal.SIGKILL else resource.RLIM_INFINITY
    found = {"cpu_limit_s": limit} if limit != resource.RLIM_INFINITY and cpu_s > limit - _MARGIN_S else {}
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    return found | ({"address_space_bytes": space} if code and space != resource.RLIM_INFINITY else {})
