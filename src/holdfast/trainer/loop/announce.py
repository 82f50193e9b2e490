"""Publish what is about to be touched, then let faults happen. The one place where a micro-batch meets the fault language."""

from __future__ import annotations

import time

from holdfast.config.faults import Moment
from holdfast.run.snapshots.memory_file import MemoryFile
from holdfast.trainer.common.batch import Batch
from holdfast.trainer.common.job import Job
from holdfast.trainer.step.step import Announce

_ANNOUNCED_SAMPLES = 200  # what fits into the pulse


class Announcer:
    """Announces the micro-batches of one process. A trial (`publish` False) leaves the pulse alone but counts on like the run."""

    def __init__(self, job: Job, memory: MemoryFile | None, publish: bool) -> None:
        self.job = job
        self.memory = memory
        self.publish = publish
        self.count = 0

    def of_step(self, step: int) -> Announce:
        def announce(phase: str, number: int, batch: Batch) -> float:
            if phase == "forward":
                self.count = self.memory.count_micro_batch() if self.memory else self.count + 1
                if self.publish:
                    self._beat(step, number, batch, "step")
            if not self.job.faults:
                return 1.0
            if phase != "backward":
                self.job.surface(all_of_them=phase == "gate")
            if phase == "gate":
                return 1.0
            seed, settings = self.job.config.train.seed, self.job.settings(step)
            return self.job.at(Moment(phase, self.job.number, self.job.rank, step, batch.tokens, batch.sources, self.count, seed, settings))

        return announce

    def rehearsal(self, _phase: str, number: int, batch: Batch) -> float:
        """Announce micro-batches that are only tried; no fault meets them."""
        self._beat(1, number, batch, "rehearsal")
        return 1.0

    def _beat(self, step: int, number: int, batch: Batch, phase: str) -> None:
        assert self.memory is not None
        facts = {"attempt": self.job.number, "step": step, "phase": phase, "micro_batch": number, "time": time.time()}
        self.memory.beat(facts | {"samples": batch.numbers[:_ANNOUNCED_SAMPLES], "tokens": batch.tokens})
