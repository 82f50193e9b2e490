"""Build what a step needs (task, optimizer), compute and apply a step, put a saved state into it. Decides nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from holdfast.base_model.folder import read_model
from holdfast.config.settings import Settings
from holdfast.run import base_model
from holdfast.run.sampling.step_table import learning_rate
from holdfast.run.snapshots.memory_file import Snapshot
from holdfast.trainer.common.device import free_bytes, prepare_torch, wait_for_memory
from holdfast.trainer.common.images import TensorImage
from holdfast.trainer.common.job import Job
from holdfast.trainer.common.refuse import Refusal, put_in
from holdfast.trainer.distributed.rank import ALONE, Rank
from holdfast.trainer.optim.choose import optimizer_of
from holdfast.trainer.optim.loss_scale import LossScale
from holdfast.trainer.optim.optimizer import FlatOptimizer
from holdfast.trainer.protocol.task import AnyTask
from holdfast.trainer.step.step import Announce, Gradients, compute_gradients, nothing, update
from holdfast.trainer.tasks import task_of


@dataclass
class TrainingState:
    """Everything one step works on, and its state as two images: the artifact, and the rest."""

    job: Job
    settings: Settings
    task: AnyTask
    optimizer: FlatOptimizer
    artifact: TensorImage
    state: TensorImage
    device: torch.device
    begun: float  # the largest weight of the artifact before the first step
    rank: Rank = ALONE
    scale: LossScale | None = None  # of gradients that are computed in fp16

    def restore(self, snapshot: Snapshot) -> None:
        """Put a saved state in. Raises Refusal where it is of other tensors: another version of holdfast trains others of some models."""
        try:
            self.artifact.read(snapshot.artifact)
            self.state.read(snapshot.state)
        except ValueError as error:
            text = f"the state of step {snapshot.step} is none of what is trained here: {error}"
            hint = "go on with the versions that began the run, or start afresh with --run DIR"
            raise Refusal("checkpoint_model_mismatch", text, hint) from None
        self.optimizer.restored()

    def samples(self, step: int) -> list[int]:
        """Return the row numbers of a step, without those in quarantine; leaving them out shifts no other row."""
        settings, table = self.job.settings(step), self.task.data.table
        hole = settings.quarantine
        numbers = table.samples(step, settings.samples, settings.behind)
        return [number for number in numbers if number not in hole]

    def compute(
        self, step: int, samples: list[int], announce: Announce, meanwhile: Callable[[], None] = nothing, at_once: int | None = None
    ) -> Gradients:
        """Compute the gradients of `samples` at `step`, in training and in every replay. Raises OutOfMemory.

        Those that overflow with a scaled loss are computed again without: what is not finite then is not the scale's doing. at_once: in
        place of the settings'.
        """
        settings, rank = self.job.settings(step), self.rank
        budget, shards = settings.micro_batch_tokens, settings.shards

        def of(scale: float) -> Gradients:
            how = (at_once or settings.parts_of_each(rank.size), settings.part_threads)
            return compute_gradients(self.task, self.optimizer, step, samples, budget, announce, meanwhile, rank, shards, scale, *how)

        if not self.scale:
            return of(1.0)
        computed = of(self.scale.value.item())
        if math.isfinite(computed.grad_norm) or not math.isfinite(computed.loss):
            return computed
        plain = of(1.0)
        return replace(plain, scale=computed.scale, skipped=math.isfinite(plain.grad_norm))

    def compute_alone(self, step: int, samples: list[int], announce: Announce) -> Gradients:
        """Compute `samples` undivided, on this rank alone. Raises OutOfMemory."""
        return compute_gradients(self.task, self.optimizer, step, samples, self.job.settings(step).micro_batch_tokens, announce)

    def apply(self, step: int, computed: Gradients) -> bool:
        """Move the weights by what was computed at `step`, if that is finite. Whether it is; one that is skipped is, and moves nothing."""
        if not computed.finite:
            return False
        if not computed.skipped:
            self.task.step_hooks.before()
            update(self.optimizer, computed, self.learning_rate(step), self.job.config.train.max_grad_norm)
        self.task.step_hooks.after(step, self.job.settings(step).steps)
        if self.scale:
            self.scale.follow(computed.skipped)
        return True

    def prepare(self, step: int) -> None:
        """Lay the samples of `step` out while a card is busy with the step before; without one it would only be another order."""
        settings = self.job.settings(step)
        whole = self.rank.size == settings.shards == 1
        if whole and self.device.type == "cuda" and step <= settings.steps and (samples := self.samples(step)):
            self.task.prepare(samples, settings.micro_batch_tokens)

    @property
    def longest(self) -> int:
        """Tokens of the longest training row."""
        data = self.task.data
        return int(data.sizes[data.table.rows].max())

    def learning_rate(self, step: int) -> float:
        train, settings = self.job.config.train, self.job.settings(step)
        return settings.lr_factor * learning_rate(step, settings.steps, train.lr, train.schedule, train.warmup)


def build(job: Job, settings: Settings) -> TrainingState:
    """Build the state before the first step, which follows from config, settings and seed alone."""
    if job.config.model and (told := base_model.changed(job.run, read_model(job.config.model))):
        raise Refusal("checkpoint_model_mismatch", told, base_model.HINT)
    device = prepare_torch(settings)
    if device.type == "cuda":
        _see_memory_free(job, device)
    task = task_of(job.config).build(job.run, job.config, settings, device, job.trial)
    if device.type == "cuda":
        torch.cuda.empty_cache()  # pieces of the sizes that loading needed, and training does not
    if begun := job.plan.start_adapter:
        put_in(TensorImage(task.artifact), job.run.start_adapter, begun, task.form.config)
    optimizer = optimizer_of(task.artifact, job.config.train, task.step_hooks.rates)
    task.step_hooks.hold(optimizer)
    begins_scaled = job.plan.precision == "fp16"  # its states have a scale, also where a remedy brought the run to fp32
    scale = LossScale() if begins_scaled or settings.dtype == "fp16" else None
    return TrainingState(
        job,
        settings,
        task,
        optimizer,
        task.step_hooks.image(optimizer.kept(), {"format": "pt"}),
        task.step_hooks.image(optimizer.state() | task.state() | (scale.state() if scale and begins_scaled else {})),
        device,
        float(torch.linalg.vector_norm(optimizer.weights.detach(), math.inf)),
        scale=scale if settings.dtype == "fp16" else None,
    )


def _see_memory_free(job: Job, device: torch.device) -> None:
    """Give a process that held the device's memory time to leave it; what is missing then is told, and tried without."""
    needed = job.plan.bytes.total() - job.plan.bytes.workspace  # a process's own is taken by now
    seconds, missing = wait_for_memory(needed, lambda: free_bytes(device))
    if missing:
        has = torch.cuda.mem_get_info(device)[1]
        told = f"of {has >> 20:,} MiB the run needs {needed >> 20:,}, and {missing >> 20:,} of them are held by other processes"
        job.event("device_memory_missing", missing_bytes=missing, needed_bytes=needed, waited_seconds=round(seconds, 1), says=told)
        job.say(f"holdfast: {told}; trying anyway")
