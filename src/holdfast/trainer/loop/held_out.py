"""Measure the held-out loss on the way, keep the best state, say when the run is over. Trains nothing and draws no random number."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from functools import partial

import torch

from holdfast.base.files import Json, append_line, cut_torn_line
from holdfast.machine import clock
from holdfast.run.evaluations import best_of, read_evaluations, stopped_early
from holdfast.run.sampling.step_table import draw_rows
from holdfast.trainer.common.batch import Batch
from holdfast.trainer.common.oom import tag_out_of_memory
from holdfast.trainer.loop.pressure import within_memory
from holdfast.trainer.parts.threads import at_the_same_time, products_in
from holdfast.trainer.protocol.task import HELD_OUT_AT_ONCE
from holdfast.trainer.state.following import SnapshotFollower
from holdfast.trainer.state.snapshot import Snapshots
from holdfast.trainer.step.step import run_dummy_passes
from holdfast.trainer.step.training_state import TrainingState


class HeldOut:
    """The evaluations of a run. What is decided follows from evaluations.jsonl, whose row of a step is on disk before the next step."""

    def __init__(self, training: TrainingState, snapshots: Snapshots | SnapshotFollower) -> None:
        self.training, self.snapshots = training, snapshots
        self.config = training.job.config.evaluate
        seed = training.job.config.train.seed
        self.samples = draw_rows(training.task.data.held_out, self.config.rows, seed)
        if training.rank.first:
            cut_torn_line(training.job.run.evaluations_file)
        training.rank.exchange({})  # nobody reads before that
        self.rows = read_evaluations(training.job.run)

    def over(self, step: int) -> bool:
        """Evaluate `step` where that is due; return whether the run ends after it. False where it stops before it is judged.

        May be asked again for a step, by another attempt: what was measured stands, and the best state is made safe all the same.
        """
        settings = self.training.job.settings(step + 1)
        if self.due(step):
            self.snapshots.settle()
            if not self._settle(step):
                return False
            known = [row for row in self.rows if row["step"] <= step]
            if stopped_early(known, self.config, settings.patience_from):
                return True
        return bool(step >= settings.steps)

    def due(self, step: int) -> bool:
        """Return whether `step` is evaluated."""
        every = self.config.every
        return every is not None and step > 0 and (step % every == 0 or step == self.training.job.settings(step + 1).steps)

    def _settle(self, step: int) -> bool:
        """Measure and journal `step` unless that was done, and have its state kept if it is the best; False where asked to stop."""
        job = self.training.job
        if all(row["step"] != step for row in self.rows):
            row = self._measure(step)
            if row is None:
                return False
            job.point("evaluated", step)
            if self.training.rank.first:
                append_line(job.run.evaluations_file, row, durable=True)
            job.event("evaluated", step=step, loss=row["loss"], best=row["best"])
            self.rows.append(row)
        best = best_of(row for row in self.rows if row["step"] <= step)
        if best is not None and best["step"] == step:
            job.point("best", step)
            self.snapshots.secure(step)
        return True

    def _measure(self, step: int) -> Json | None:
        """Evaluate `step` and return its row; None when the run is asked to stop meanwhile."""
        job = self.training.job
        job.point("evaluate", step)
        began = time.perf_counter()
        model = self.training.task.model
        model.eval()
        try:
            with self.training.optimizer.judged():
                found = within_memory(self.training, step + 1, lambda: self._loss(step))
        finally:
            model.train()
        if found is None:
            return None
        total, divisor, labels = found
        loss = total / divisor if math.isfinite(total) else None
        before = best_of(self.rows)
        best = loss is not None and (before is None or loss < before["loss"])
        return {"step": step, "loss": loss, "labels": labels, "seconds": round(time.perf_counter() - began, 4), "best": best}

    def _loss(self, step: int) -> tuple[float, float, int] | None:
        """Sum the losses over the held-out rows, in the next step's micro-batches: (sum, divisor, number of label tokens)."""
        budget, size = self.training.job.settings(step + 1).micro_batch_tokens, self.training.rank.size
        total, divisor, labels = 0.0, 0.0, 0
        with torch.no_grad():  # not inference_mode: what the model keeps from here on (masks, tables) must serve training, too
            for start in range(0, len(self.samples), HELD_OUT_AT_ONCE):
                batches = self.training.task.batches(self.samples[start : start + HELD_OUT_AT_ONCE], budget)
                told = self._losses_by_rank(batches, step)
                if any(one["losses"] is None for one in told):
                    return None
                for number, batch in enumerate(batches):  # added in one order, whoever computed them
                    loss = told[number % size]["losses"][number // size]
                    total += math.nan if loss is None else loss
                    divisor, labels = divisor + batch.divisor, labels + batch.labels
        return total, divisor, labels

    def _losses_by_rank(self, batches: Sequence[Batch], step: int) -> list[Json]:
        """Compute this rank's share of `batches`; return each rank's losses, None where it is to stop.

        Losses that are not finite may be None.
        """
        rank, task = self.training.rank, self.training.task
        shares = [batches[number :: rank.size] for number in range(rank.size)]

        def work() -> list[float] | None:
            if not self.training.job.stopping.asked:  # which all ranks answer alike
                run_dummy_passes(rank, [len(share) for share in shares], lambda: task.loss_sum(task.small_batch(), step))
            return self._losses(shares[rank.number], step)

        return rank.agreed(work, lambda losses: {"losses": losses})[1]

    def _losses(self, batches: Sequence[Batch], step: int) -> list[float] | None:
        job, losses, settings = self.training.job, list[float](), self.training.job.settings(step + 1)

        def loss_of(batch: Batch) -> float:
            with tag_out_of_memory(batch):
                return float(self.training.task.loss_sum(batch, step)[0].double())

        at_once = settings.parts_of_each(self.training.rank.size)
        with products_in(settings.part_threads):
            for start in range(0, len(batches), at_once):
                if job.stopping.asked:
                    return None
                self.snapshots.memory.beat({"attempt": job.number, "step": step, "phase": "evaluate", "time": clock.now()})
                some = batches[start : start + at_once]
                with tag_out_of_memory(some[0]):
                    self.training.task.prepare_passes(some)
                losses += at_the_same_time([partial(loss_of, batch) for batch in some])
        return losses
