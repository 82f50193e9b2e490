"""When a program of which little is known is silent for too long, by the pace it has shown. Pure: the clock is given."""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field

_TIMES, _LONGEST_TIMES = 20, 3  # of a usual pause, and of the longest one
_FIRST_S = 900.0  # before it has shown a pace
_BUSY_TIMES = 5  # where it computes all the while: perhaps an evaluation that prints nothing
_SLEPT_S = 30.0  # between two looks: it was not the program that stood still
_REMEMBERED = 50


@dataclass
class Pace:
    """Signs of life of one attempt. Times are of one monotonic clock, in seconds.

    floor_s: silence is never called a hang earlier. patient: how many times longer than usual to wait, because a hang that was
    ended before was perhaps none. told: the floor is its user's own word, so that it counts from the start.
    """

    began: float
    floor_s: float
    told: bool = False
    patient: float = 1.0
    gaps: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    _stepped: float | None = None
    _sign: float = 0.0
    _work: float = 0.0
    _looked: float = 0.0

    def __post_init__(self) -> None:
        self._sign = self._work = self._looked = self.began

    def look(self, now: float, stepped: bool, printed: bool, worked: bool) -> None:
        """What was seen since the last look: another step, output, or a good part of the time spent computing."""
        if now - self._looked > _SLEPT_S:
            asleep = now - self._looked
            self._sign, self._work = self._sign + asleep, self._work + asleep
            self._stepped = None
        self._looked = now
        if stepped:
            if self._stepped is not None:
                self.gaps.append(now - self._stepped)
            self._stepped = now
        if stepped or printed:
            self._sign = now
        if stepped or printed or worked:
            self._work = now

    def overdue(self, now: float) -> tuple[float, float] | None:
        """(seconds of silence, seconds allowed) where it is too long."""
        limit = self.limit_s()
        if now - self._work > limit:
            return now - self._work, limit
        if self.gaps and now - self._sign > limit * _BUSY_TIMES:
            return now - self._sign, limit * _BUSY_TIMES
        return None

    def limit_s(self) -> float:
        """Seconds it may neither step nor print nor compute."""
        if self.gaps:
            learned = max(_TIMES * statistics.median(self.gaps), _LONGEST_TIMES * max(self.gaps))
        else:
            learned = 0.0 if self.told else _FIRST_S
        return max(self.floor_s, learned) * self.patient
