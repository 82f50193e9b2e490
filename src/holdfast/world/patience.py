"""How long a trainer may be silent, by what it does, learned from this run. Ends nothing: world/process.py does."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

from holdfast.core.files import Json, last_line, read_json
from holdfast.core.run import RunFolder

_FIRST_S = 900.0  # what a section may take before the run has shown what it takes
_TIMES = 20  # of what it took before
_REMEMBERED = 50


@dataclass(frozen=True)
class Overdue:
    """A section that lasts longer than it may."""

    section: str
    seconds: float
    limit_s: float


class Patience:
    """Watches one attempt. `floor_s`: no section is called overdue earlier, however quick it was before."""

    def __init__(self, run: RunFolder, number: int, floor_s: float) -> None:
        self.run, self.number, self.floor_s = run, number, floor_s
        self.began = time.time()
        rows = list(run.steps())
        self.steps = [row["seconds"] for row in rows[-_REMEMBERED:]]
        self.seen = rows[-1]["step"] if rows else 0
        firsts = {row["attempt"]: row["time"] for row in reversed(rows) if row["attempt"] < number}
        self.first_steps = [took for before, at in firsts.items() if (took := _first_step_s(run, before, at)) is not None]
        self.starts = [took for took in (_start_s(run, before) for before in range(1, number)) if took is not None]

    def overdue(self, pulse: Json | None, now: float) -> Overdue | None:
        """What has been silent for too long at `now` (seconds since the epoch), given the trainer's newest pulse."""
        if pulse is None:
            return self._judge("start", now - self.began, self.starts)
        silent = now - pulse["time"]
        if pulse["phase"] in ("rehearsal", "evaluate"):
            return self._judge(pulse["phase"], silent, [])
        if not self._has_committed():
            return self._judge("first step", silent, self.first_steps)
        return self._judge("step", silent, self.steps)

    def limit_s(self) -> float:
        """Seconds a step may be silent."""
        return max(self.floor_s, _TIMES * statistics.median(self.steps)) if self.steps else _FIRST_S

    def _judge(self, section: str, seconds: float, seen: list[float]) -> Overdue | None:
        limit = max(self.floor_s, _TIMES * max(seen)) if seen else max(self.floor_s, _FIRST_S)
        return Overdue(section, seconds, limit) if seconds > limit else None

    def _has_committed(self) -> bool:
        """Whether this attempt has committed a step; the time of its newest one is remembered, once."""
        row = last_line(self.run.steps_file)
        if row is None or row["attempt"] != self.number:
            return False
        if row["step"] > self.seen:
            self.seen, self.steps = row["step"], [*self.steps[1 - _REMEMBERED :], row["seconds"]]
        return True


def _start_s(run: RunFolder, number: int) -> float | None:
    """Seconds from the start of an attempt to its first pulse, as far as files tell."""
    launch, ready = read_json(run.attempt(number) / "launch.json"), run.attempt(number) / "ready.json"
    return ready.stat().st_mtime - launch["started"] if launch and ready.exists() else None


def _first_step_s(run: RunFolder, number: int, committed: float) -> float | None:
    """Seconds from an attempt's readiness to its first step, committed at that time."""
    ready = run.attempt(number) / "ready.json"
    return committed - ready.stat().st_mtime if ready.exists() else None
