"""How long a child may be silent, by what it does, learned from this run. Ends nothing."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.base.files import Json, last_line
from holdfast.processes.awake import Awake
from holdfast.run.attempt import read_launch_spec
from holdfast.run.evaluations import read_evaluations
from holdfast.run.folder import RunFolder

_FIRST_S = 900.0  # what a section may take before the run has shown what it takes
_TIMES = 20  # of what it took before
_REMEMBERED = 50
_LOOK_MOST_S = 2.0  # between two looks: more is time that the watcher itself did not have


@dataclass(frozen=True)
class Overdue:
    """A section that lasts longer than it may."""

    section: str
    seconds: float
    limit_s: float


class Patience:
    """Watches one attempt. `floor_s`: no section is called overdue earlier, however quick it was before.

    Silence is counted from the look at which the newest pulse was first seen, in seconds that the watcher was awake for.
    """

    def __init__(self, run: RunFolder, number: int, floor_s: float, clock: Callable[[], float] | None = None) -> None:
        self.run, self.number, self.floor_s = run, number, floor_s
        self._clock = clock or Awake(_LOOK_MOST_S).now
        self._pulse: Json | None = None
        self._since = self._clock()
        rows = list(run.steps())
        self.steps = [row["seconds"] for row in rows[-_REMEMBERED:]]
        self.seen = rows[-1]["step"] if rows else 0
        firsts = {row["attempt"]: row["time"] for row in reversed(rows) if row["attempt"] < number}
        self.first_steps = [took for before, at in firsts.items() if (took := _first_step_s(run, before, at)) is not None]
        self.starts = [took for took in (_start_s(run, before) for before in range(1, number)) if took is not None]

    def overdue(self, pulse: Json | None) -> Overdue | None:
        """What has been silent for too long by now, given the trainer's newest pulse. To be asked all the while."""
        now = self._clock()
        if pulse != self._pulse:
            self._pulse, self._since = pulse, now
        silent = now - self._since
        if pulse is None:
            return self._judge("start", silent, self.starts)
        if pulse["phase"] == "evaluate":
            return self._judge("evaluate", silent, self._evaluations() if silent > self.floor_s else [])
        if pulse["phase"] == "rehearsal":
            return self._judge("rehearsal", silent, [])
        if not self._has_committed():
            return self._judge("first step", silent, self.first_steps)
        return self._judge("step", silent, self.steps)

    def limit_s(self) -> float:
        """Seconds a step may be silent."""
        return max(self.floor_s, _TIMES * statistics.median(self.steps)) if self.steps else _FIRST_S

    def _judge(self, section: str, seconds: float, seen: list[float]) -> Overdue | None:
        first = max(self.floor_s, _FIRST_S)
        limit = max(self.floor_s, _TIMES * min(max(seen), first)) if seen else first  # clocks that were set make any number of seconds
        return Overdue(section, seconds, limit) if seconds > limit else None

    def _evaluations(self) -> list[float]:
        """What whole evaluations took: no less than any of their parts, so that nothing longer than at first is allowed."""
        return [min(row["seconds"], _FIRST_S / _TIMES) for row in read_evaluations(self.run)]

    def _has_committed(self) -> bool:
        """Whether this attempt has committed a step; the time of its newest one is remembered, once."""
        row = last_line(self.run.steps_file)
        if row is None or row["attempt"] != self.number:
            return False
        if row["step"] > self.seen:
            self.seen, self.steps = row["step"], [*self.steps[1 - _REMEMBERED :], row["seconds"]]
        return True


class Silence:
    """How long a child is silent that gives signs of life, and when that is too long: by the longest pause it made so far."""

    def __init__(self, floor_s: float) -> None:
        self.floor_s, self.longest = floor_s, 0.0
        self._clock = Awake(_LOOK_MOST_S).now
        self._last, self._signs = self._clock(), 0

    def broken(self) -> None:
        """The child gave a sign of life."""
        now = self._clock()
        if self._signs:
            self.longest = max(self.longest, now - self._last)
        self._last, self._signs = now, self._signs + 1

    def too_long(self) -> float | None:
        """Seconds since the last sign of life, or since the start, where these are too many."""
        limit = _TIMES * self.longest if self._signs > 1 else _FIRST_S
        silent = self._clock() - self._last
        return silent if silent > max(self.floor_s, limit) else None


def _start_s(run: RunFolder, number: int) -> float | None:
    """Seconds from the start of an attempt to its first pulse, as far as files tell."""
    orders, ready = read_launch_spec(run.attempt(number)), run.attempt(number) / "ready.json"
    return ready.stat().st_mtime - orders.started if orders and orders.started and ready.exists() else None


def _first_step_s(run: RunFolder, number: int, committed: float) -> float | None:
    """Seconds from an attempt's readiness to its first step, committed at that time."""
    ready = run.attempt(number) / "ready.json"
    return committed - ready.stat().st_mtime if ready.exists() else None
