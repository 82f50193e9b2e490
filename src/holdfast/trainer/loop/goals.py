"""Goals and budgets of a run (train.until): when it ends before its last step, and how long its schedule is made for them.

What is decided is an entry of the settings timeline, on disk before a step uses it: a run that is killed goes on as one that was not.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from holdfast.base.files import Json
from holdfast.config.settings import PartialSettings
from holdfast.config.train import Until
from holdfast.machine import clock
from holdfast.run.attempt import closed_attempts, read_launch_spec
from holdfast.run.folder import RunFolder
from holdfast.run.timeline import LENGTHENED, Entry
from holdfast.trainer.step.training_state import TrainingState

_WINDOW, _LEAST = 10, 3  # steps whose mean loss counts; before so many of them no loss is a goal reached
_TIMED = 20  # steps that tell how long the others take
_SLACK = 0.1  # of the steps that are left: a smaller change of the schedule is left undone
_ASLEEP_S = 1.0  # less is what two readings of clocks are apart


class NoGoal:
    """A run without train.until."""

    def look(self, row: Json) -> None:
        """Do nothing: no goal ends the run early."""


class Goals:
    """Looks at each step's row before it is committed. All ranks decide as the first one does."""

    def __init__(self, training: TrainingState, until: Until, step: int, now: Callable[[], float] | None = None) -> None:
        self.training, self.until, self.now, self.slept = training, until, now or awake(), _slept_s()
        self.losses: deque[float] = deque(maxlen=_WINDOW)
        self.tokens = 0
        if training.rank.first:
            self._take_committed(step)
        self.before = seconds_before(training.job.run, training.job.number) if training.rank.first else 0.0
        self.began = (training.job.orders.get("started") or self.now()) if training.rank.first else 0.0
        self.times: deque[tuple[int, float]] = deque(maxlen=_TIMED)
        self._fit_before(step)

    def _take_committed(self, step: int) -> None:
        """Count the steps up to `step`. Of one whose row a power cut took, the tokens are known by its rows; no loss before it counts."""
        rows = {row["step"]: row for row in self.training.job.run.steps() if row["step"] <= step}
        self.tokens = sum(row["tokens"] for row in rows.values())
        lost = [number for number in range(1, step + 1) if number not in rows]
        if lost:
            table, sizes = self.training.task.data.table, self.training.task.data.sizes
            of = ((number, self.training.job.settings(number)) for number in lost)
            self.tokens += sum(int(sizes[table.samples(number, then.samples, then.behind)].sum()) for number, then in of)
        behind = (row["loss"] for number, row in rows.items() if number > max(lost, default=0))
        self.losses.extend(loss for loss in behind if loss is not None)

    def look(self, row: Json) -> None:
        """Take up a step that was computed; end the run with it, or fit its length, where that is due."""
        if self.training.rank.first and (asleep := _slept_s() - self.slept) > _ASLEEP_S:
            self.slept += asleep
            self.training.job.event("slept", seconds=round(asleep, 3), step=row["step"])
        changes: Json = self._decide_change(row) if self.training.rank.first else {}
        changes = self.training.rank.exchange(changes)[0]
        if not changes:
            return
        step, job = row["step"], self.training.job
        if changes["steps"] != job.settings(step + 1).steps:
            job.amend(Entry(step + 1, self._length(changes["steps"], step + 1), changes["reason"]))
        if changes["goal"]:
            job.event("goal_reached", goal=changes["goal"], step=step, reason=changes["reason"])
        else:
            job.event("length_fitted", steps=changes["steps"], reason=changes["reason"])

    def _decide_change(self, row: Json) -> Json:
        """Return the change this step brings as {steps, goal, reason}; empty where there is none."""
        step = row["step"]
        self.tokens += row["tokens"]
        if row["loss"] is not None:
            self.losses.append(row["loss"])
        now = self.now()
        self.times.append((step, now))
        if reached := self._find_goal(row, self.before + now - self.began):
            return {"steps": step, "goal": reached[0], "reason": reached[1]}
        return self._fit_hours(step, self.before + now - self.began)

    def _find_goal(self, row: Json, seconds: float) -> tuple[str, str] | None:
        """Return the goal this step has reached as (goal, in words); None where it has reached none."""
        until = self.until
        if until.loss is not None and row["loss"] is not None and len(self.losses) >= _LEAST:
            mean = sum(self.losses) / len(self.losses)
            if mean <= until.loss and row["loss"] <= until.loss:
                return "loss", f"train.until.loss {until.loss:g}: the last {len(self.losses)} steps have {mean:.4f} in the mean"
        if until.tokens is not None and self.tokens >= until.tokens:
            return "tokens", f"train.until.tokens {until.tokens:,}: {self.tokens:,} tokens were trained on"
        if until.hours is not None and seconds >= 3600 * until.hours:
            return "hours", f"train.until.hours {until.hours:g}: {seconds / 3600:.4g} hours were trained"
        return None

    def _fit_hours(self, step: int, seconds: float) -> Json:
        """Return a change to the length that hours allow, where it differs from the one of the schedule; or that they end here."""
        if self.until.hours is None or len(self.times) < _LEAST:
            return {}
        (first, began), (last, now) = self.times[0], self.times[-1]
        pace = (now - began) / (last - first)
        planned = self.training.job.settings(step + 1).steps
        fits = step + max(0, int((3600 * self.until.hours - seconds) / max(pace, 1e-6)))
        if not self._free or self.until.tokens is not None:
            fits = min(fits, self._longest())
        fitted = abs(fits - planned) <= max(1.0, _SLACK * max(planned - step, 0))
        if fitted and (step < planned or not self._ends_by_hours(planned)):
            return {}
        if fitted or fits <= step:
            told = f"train.until.hours {self.until.hours:g}: {seconds / 3600:.4g} hours were trained, and a step takes {pace:.3g} s"
            return {"steps": step, "goal": "hours", "reason": told}
        reason = f"{pace:.3g} s a step leave {fits - step:,} steps of the {self.until.hours:g} hours"
        return {"steps": fits, "goal": None, "reason": reason}

    def _ends_by_hours(self, planned: int) -> bool:
        """Return whether a run of so many steps would be longer without its limit of hours."""
        return (self._free and self.until.tokens is None) or planned < self._longest()

    @property
    def _free(self) -> bool:
        """Whether the config names no length of its own."""
        train = self.training.job.config.train
        return train.steps is None and train.epochs is None

    def _extension(self) -> Entry | None:
        """Return the entry that extended the run, while its length is the newest."""
        entry = next((entry for entry in reversed(self.training.job.timeline) if "steps" in entry.settings), None)
        return entry if entry is not None and entry.settings.keys() >= LENGTHENED else None

    def _longest(self) -> int:
        """Return the number of steps by everything but hours: what holds the tokens wanted, the newest extension, or the plan."""
        job = self.training.job
        told = (
            entry.settings["steps"]
            for entry in reversed(job.timeline)
            if entry.settings.keys() >= LENGTHENED or ("steps" in entry.settings and entry.reason.startswith("train.until.tokens"))
        )
        return max(1, next(told, job.plan.steps))

    def _length(self, steps: int, from_step: int) -> PartialSettings:
        """Return the settings of a run of `steps` steps."""
        settings = self.training.job.settings(from_step)
        samples = steps * self.training.task.data.table.batch - settings.behind
        return {"steps": steps, "samples": min(samples, settings.samples) if steps <= settings.steps else samples}

    def _fit_before(self, step: int) -> None:
        """Fit the length of a run that stands at `step` before anything is trained of it, or of what it was extended by."""
        job, extension = self.training.job, self._extension()
        begins = extension.from_step if extension else 1
        fitted = self._decide_length(step, begins) if self.training.rank.first and begins > step else {}
        if fitted := self.training.rank.exchange(fitted)[0]:
            job.amend(Entry(begins, self._length(fitted["steps"], begins), fitted["reason"]))
            job.event("length_fitted", steps=fitted["steps"], reason=fitted["told"])

    def _decide_length(self, step: int, begins: int) -> Json:
        """Return the length, from step `begins` on, of a run that stands at `step`, as {steps, reason, told}; empty where it stays."""
        planned = self.training.job.settings(begins).steps
        if self.until.tokens is not None:
            steps, total = self._hold_tokens(self.until.tokens, step, begins)
            reason = f"train.until.tokens {self.until.tokens:,}"
            told = f"{total:,} tokens in {steps:,} steps; train.until.tokens is {self.until.tokens:,}"
            return {"steps": max(steps, begins), "reason": reason, "told": told} if steps != planned else {}
        if self.until.hours is not None and self._free and planned - begins + 1 < _TIMED:
            reason = f"train.until.hours {self.until.hours:g}: the first {_TIMED} steps tell how many there will be"
            return {"steps": begins - 1 + _TIMED, "reason": reason, "told": reason}
        return {}

    def _hold_tokens(self, wanted: int, step: int, begins: int) -> tuple[int, int]:
        """Return (steps, their tokens) of a run that stands at `step` and holds the tokens wanted: by the order of the rows alone."""
        job, table, sizes = self.training.job, self.training.task.data.table, self.training.task.data.sizes
        planned, total = job.settings(begins), self.tokens
        while total < wanted and (self._free or step < planned.steps):
            step += 1
            behind = (planned if step >= begins else job.settings(step)).behind
            total += int(sizes[table.samples(step, max(planned.samples, step * table.batch - behind), behind)].sum())
        return step, total


def awake() -> Callable[[], float]:
    """Return the run's clock, less what the machine sleeps from now on: no step is trained then."""
    before = _slept_s()
    return lambda: clock.now() - (_slept_s() - before)


def _slept_s() -> float:
    """Return the seconds that the machine slept since it was started; 0 where that is not counted."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic() if hasattr(time, "CLOCK_BOOTTIME") else 0.0


def goals_of(training: TrainingState, step: int) -> Goals | NoGoal:
    """Build what may end the run that stands at `step`."""
    until = training.job.config.train.until
    return NoGoal() if until is None else Goals(training, until, step)


def seconds_before(run: RunFolder, attempt: int) -> float:
    """Return the seconds that earlier attempts trained, each from its start to its last sign of life, less what the machine slept."""
    last: dict[int, float] = {}
    for row in run.steps():
        last[row["attempt"]] = max(row["time"], last.get(row["attempt"], 0.0))
    for number, end in closed_attempts(run):
        if (end.facts.get("ending") or {}).get("seconds") is not None:  # else nobody saw its end, and it died before that was found
            last[number] = max(float(end.facts["died"]), last.get(number, 0.0))
    for event in run.events():
        if event["event"] == "slept" and event["attempt"] in last:
            last[event["attempt"]] -= event["seconds"]
    total = 0.0
    for number in run.attempts():
        spec = read_launch_spec(run.attempt(number))
        if number < attempt and spec is not None and spec.started and number in last:
            total += max(0.0, last[number] - float(spec.started))
    return total
