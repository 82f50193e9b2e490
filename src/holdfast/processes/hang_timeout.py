"""How long a child may be silent before that is a hang, learned from what it has shown. Ends nothing.

A trainer of ours tells what it is at, so each section has its time (TrainerHangTimeout); any other child has its pauses (HangTimeout).
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.base.errors import Stop
from holdfast.base.files import Json, last_line
from holdfast.processes.awake import Awake
from holdfast.run.attempt import read_launch_spec
from holdfast.run.evaluations import read_evaluations
from holdfast.run.folder import RunFolder

FIRST_S = 900.0  # before it has shown what it takes
_TIMES = 20  # of a usual pause
_REMEMBERED = 50
_BUSY_TIMES = 5  # where it computes all the while: perhaps an evaluation that prints nothing
_SLOW_DISK = 50e6  # bytes a second that a start may read its model at
_READS = 4 << 20  # bytes between two looks, of which a process that only polls reads none
_LOOK_MOST_S = 2.0  # between two looks: more is time that the watcher itself did not have


@dataclass(frozen=True)
class Overdue:
    """A section that lasts longer than it may."""

    section: str
    seconds: float
    limit_s: float


def allowed_s(seen: Sequence[float], floor_s: float, longest_times: int = _TIMES, first_s: float = FIRST_S) -> float:
    """Return seconds of silence that are no hang: 20 usual pauses, some longest ones, `first_s` before any was seen; at least `floor_s`."""
    learned = max(_TIMES * statistics.median(seen), longest_times * max(seen)) if seen else first_s
    return max(floor_s, learned)


def reading_s(run: RunFolder) -> float:
    """Return the seconds in which a slow disk gives the weights that a start reads; 0 where it reads none, or none can be seen."""
    try:
        return sum(file.stat().st_size for file in Path(run.config().model or "").glob("*.safetensors")) / _SLOW_DISK
    except (OSError, Stop):
        return 0.0


class HangTimeout:
    """Watches a child by its signs of life, in seconds that the watcher was awake for.

    first_s: what is allowed before it has shown a pace. longest_times: of its longest pause. longer: how many times longer than
    usual to wait, because a hang that was ended before was perhaps none.
    """

    def __init__(
        self,
        floor_s: float,
        first_s: float = FIRST_S,
        longest_times: int = _TIMES,
        longer: float = 1.0,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.floor_s, self.first_s, self.longest_times, self.longer = floor_s, first_s, longest_times, longer
        self.gaps: deque[float] = deque(maxlen=_REMEMBERED)
        self._clock = clock or Awake(_LOOK_MOST_S).now
        self._sign = self._work = self._clock()
        self._stepped: float | None = None

    def look(self, stepped: bool = True, printed: bool = False, worked: bool = False) -> None:
        """Note what was seen since the last look: another step, output, or a good part of the time spent computing."""
        now = self._clock()
        if stepped:
            if self._stepped is not None:
                self.gaps.append(now - self._stepped)
            self._stepped = now
        if stepped or printed:
            self._sign = now
        if stepped or printed or worked:
            self._work = now

    def overdue(self) -> Overdue | None:
        """Return the silence that is too long by now; None where there is none."""
        now, limit = self._clock(), allowed_s(self.gaps, self.floor_s, self.longest_times, self.first_s) * self.longer
        if now - self._work > limit:
            return Overdue("silence", now - self._work, limit)
        if self.gaps and now - self._sign > limit * _BUSY_TIMES:
            return Overdue("computing", now - self._sign, limit * _BUSY_TIMES)
        return None


class TrainerHangTimeout:
    """Watches one attempt of our own trainer. `floor_s`: no section is called overdue earlier, however quick it was before.

    A start may take as long as a slow disk gives the model's bytes, whatever starts before it took, and some times that while it reads.

    Silence is counted from the look at which the newest pulse was first seen, in seconds that the watcher was awake for.
    """

    def __init__(self, run: RunFolder, number: int, floor_s: float, clock: Callable[[], float] | None = None) -> None:
        self.run, self.number, self.floor_s = run, number, floor_s
        self._clock = clock or Awake(_LOOK_MOST_S).now
        self._pulse: Json | None = None
        self._since = self._reading = self._clock()
        self._read, self._of_model = 0, reading_s(run)
        rows = list(run.steps())
        self.steps = [row["seconds"] for row in rows[-_REMEMBERED:]]
        self.seen = rows[-1]["step"] if rows else 0
        firsts = {row["attempt"]: row["time"] for row in reversed(rows) if row["attempt"] < number}
        self.first_steps = _known(_first_step_s(run, before, at) for before, at in firsts.items())
        self.starts = _known(_start_s(run, before) for before in range(1, number))

    def overdue(self, pulse: Json | None, read: int = 0) -> Overdue | None:
        """Return what is overdue by now, from the trainer's newest pulse and the bytes it has read from disks. Called all the while."""
        now = self._clock()
        if pulse != self._pulse:
            self._pulse, self._since = pulse, now
        silent = now - self._since
        if pulse is None:
            if read >= self._read + _READS:
                self._read, self._reading = read, now
            limit = self._limit(self.starts) + self._of_model
            still, limit = (silent, limit * _BUSY_TIMES) if silent > limit * _BUSY_TIMES else (now - self._reading, limit)
            return Overdue("start", still, limit) if still > limit else None
        if pulse["phase"] == "evaluate":
            return self._judge("evaluate", silent, self._evaluations() if silent > self.floor_s else [])
        if pulse["phase"] == "rehearsal":
            return self._judge("rehearsal", silent, [])
        if not self._has_committed():
            return self._judge("first step", silent, self.first_steps)
        return self._judge("step", silent, self.steps)

    def limit_s(self) -> float:
        """Return the seconds that a step like the others may be silent."""
        return allowed_s(self.steps, self.floor_s, longest_times=0)

    def _judge(self, section: str, seconds: float, seen: list[float]) -> Overdue | None:
        limit = self._limit(seen)
        return Overdue(section, seconds, limit) if seconds > limit else None

    def _limit(self, seen: list[float]) -> float:
        most = max(self.floor_s, FIRST_S)  # clocks that were set make any number of seconds
        return allowed_s([min(took, most) for took in seen if took > 0], self.floor_s)

    def _evaluations(self) -> list[float]:
        """Return the seconds of whole evaluations: no less than any of their parts, so that nothing longer than at first is allowed."""
        return [min(row["seconds"], FIRST_S / _TIMES) for row in read_evaluations(self.run)]

    def _has_committed(self) -> bool:
        """Return whether this attempt has committed a step; remember the seconds of its newest one, once."""
        row = last_line(self.run.steps_file)
        if row is None or row["attempt"] != self.number:
            return False
        if row["step"] > self.seen:
            self.seen, self.steps = row["step"], [*self.steps[1 - _REMEMBERED :], row["seconds"]]
        return True


def _known(seconds: Iterable[float | None]) -> list[float]:
    """Return the durations that files tell; one that is none, as the calendar was set back in it, is unknown."""
    return [took for took in seconds if took is not None and took > 0]


def _start_s(run: RunFolder, number: int) -> float | None:
    """Return the seconds from the start of an attempt to its first pulse; None where files do not tell."""
    orders, ready = read_launch_spec(run.attempt(number)), run.attempt(number) / "ready.json"
    return ready.stat().st_mtime - orders.started if orders and orders.started and ready.exists() else None


def _first_step_s(run: RunFolder, number: int, committed: float) -> float | None:
    """Return the seconds from an attempt's readiness to its first step, committed at that time; None where files do not tell."""
    ready = run.attempt(number) / "ready.json"
    return committed - ready.stat().st_mtime if ready.exists() else None
