"""The time of a run: the calendar's where its supervision began, counted on by a clock that nobody sets. Standard library only.

A calendar clock may be set by years while a run goes on; what its processes write down then stays in order, and its durations true.
They inherit where it began by an environment variable, which holds for one boot of one machine.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import time
import zlib
from collections.abc import Iterator

from holdfast.base.identity import boot_id

CLOCK = "HOLDFAST_CLOCK"
_SET_S = 1.0  # apart by more, the calendar's clock was set since


def now() -> float:
    """Return the seconds since the epoch by the run's clock; by the calendar's where no run is supervised."""
    offset = number_of_this_boot(os.environ.get(CLOCK))
    return time.time() if offset is None else offset + _counted()


def in_calendar(moment: float, told: object = None) -> float:
    """Return a moment of the run's clock, or of the clock `told`, as the calendar has it now: to hold it against times of files, or now."""
    offset = number_of_this_boot(os.environ.get(CLOCK) if told is None else told)
    ahead = 0.0 if offset is None else time.time() - offset - _counted()
    return moment + ahead if abs(ahead) > _SET_S else moment


@contextlib.contextmanager
def counting(told: object = None) -> Iterator[None]:
    """Count the time of a run while this lasts: on from where `told` began, the clock of an attempt that lives, or from the calendar's."""
    before = os.environ.get(CLOCK)
    os.environ[CLOCK] = (
        told if isinstance(told, str) and number_of_this_boot(told) is not None else of_this_boot(f"{time.time() - _counted():.6f}")
    )
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(CLOCK, None)
        else:
            os.environ[CLOCK] = before


def _counted() -> float:
    """Count the seconds since the machine was started, its sleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def of_this_boot(fact: str) -> str:
    """Mark a fact that means something as long as this machine runs."""
    return f"{_boot()} {fact}"


def _boot() -> str:
    """Return a number for this boot of this machine that names neither."""
    return f"{zlib.crc32(boot_id().encode()):08x}"


@functools.lru_cache(maxsize=8)
def number_of_this_boot(told: object) -> float | None:
    """Return the number that `of_this_boot` marked, as the seconds that a clock is ahead of the counted time; None for any other."""
    boot, _, offset = str(told).rpartition(" ")
    with contextlib.suppress(ValueError):
        return float(offset) if boot == _boot() and math.isfinite(float(offset)) else None
    return None
