"""Which steps become durable checkpoints: at a fixed interval, or at the one that saves, steps and failures ask for. Saves nothing."""

from __future__ import annotations

import statistics
import time
from collections import deque

from holdfast.run.snapshots.memory_file import MemoryFile
from holdfast.run.snapshots.save_interval import checkpoint_interval, mean_time_between_failures
from holdfast.trainer.common.job import Job

_REMEMBERED = 32  # steps whose time the interval goes by


class CheckpointSchedule:
    """Says when a checkpoint is due. It changes nothing that is computed, so two runs may save at other steps and end alike."""

    def __init__(self, job: Job, memory: MemoryFile, step: int) -> None:
        self.job, self.memory = job, memory
        self.config = job.config.save
        self.failures: int = job.orders["failures"]
        self.began = time.monotonic() - job.orders["running_s"]
        self.seconds: deque[float] = deque(maxlen=_REMEMBERED)
        self.last = step
        self.told: int | None = None

    def due(self, step: int, seconds: float) -> bool:
        """Decide whether the state after `step`, which took `seconds`, is to be made durable."""
        self.seconds.append(seconds)
        if any(every and step % every == 0 for every in (self.config.keep_every, self.config.to_every)):
            return True
        if self.config.every:
            return step % self.config.every == 0
        return step - self.last >= self._interval(step)

    def asked(self, step: int) -> None:
        """Note that a checkpoint of `step` was requested."""
        self.last = step

    def _interval(self, step: int) -> int:
        """Return the number of steps between checkpoints. The first is made as soon as possible, to measure its cost."""
        save_s = self.memory.saved_s
        if save_s is None:
            return self.config.min_every if self.last == 0 else self.config.max_every
        step_s = statistics.median(self.seconds)
        failure_s = mean_time_between_failures(time.monotonic() - self.began, self.failures)
        steps = round(checkpoint_interval(save_s, failure_s) / step_s)
        steps = min(self.config.max_every, max(self.config.min_every, steps))
        if self.told is None or not self.told / 2 <= steps <= self.told * 2:
            self.told = steps
            reason = f"a save takes {save_s:.3f} s, a step {step_s:.3f} s, {failure_s:,.0f} s between failures ({self.failures} so far)"
            self.job.event("checkpoint_interval", step=step, steps=steps, reason=reason)
        return steps
