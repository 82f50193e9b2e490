"""Prove, before the first step, that parts of a step computed at the same time have the bits of those computed one by one."""

from __future__ import annotations

import torch

from holdfast.trainer.distributed.rank import parts_of
from holdfast.trainer.loop.pressure import change, rehearse, within_memory
from holdfast.trainer.step.step import Announce
from holdfast.trainer.step.training_state import TrainingState


def rehearse_parts(training: TrainingState, announce: Announce) -> None:
    """Try the run's largest passes first. Those at the same time are held against the same ones, one by one: same bits, or one by one."""
    rehearse(training, announce)
    settings = training.job.settings(1)
    if settings.parts_of_each(training.rank.size) == 1:
        return
    data = training.task.data
    step, _ = data.table.largest_step(data.sizes, settings.samples)
    parts = parts_of(data.table.samples(step, settings.samples), lambda: data.sizes, settings.shards)
    first = [training.task.batches(part, settings.micro_batch_tokens)[0] for part in parts[: settings.at_once] if part]
    samples = [number for batch in first for number in batch.numbers]
    together = within_memory(training, 1, lambda: training.compute(1, samples, announce))
    gradient = training.optimizer.gradient.clone()
    alone = within_memory(training, 1, lambda: training.compute(1, samples, announce, at_once=1))
    same = torch.equal(gradient, training.optimizer.gradient) and together.loss == alone.loss
    training.optimizer.clear()
    if not same:
        change({"at_once": 1}, training, 1, "parts that are computed at the same time do not have the bits of those computed one by one")
