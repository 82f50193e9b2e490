"""Build what a step needs (task, optimizer, step table) and put a saved state into it. Computes no step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from holdfast.core.memoryfile import Snapshot
from holdfast.core.table import StepTable, learning_rate
from holdfast.core.timeline import Settings
from holdfast.rows.tokenset import load_tokens, split, step_table
from holdfast.trainer.images import Image
from holdfast.trainer.job import Job
from holdfast.trainer.model import prepare_torch
from holdfast.trainer.optimizer import AdamW
from holdfast.trainer.refuse import put_in
from holdfast.trainer.tasks.sft import Sft


@dataclass
class Bench:
    """Everything one step works on, and its state as two images: the artifact, and the rest."""

    job: Job
    settings: Settings
    task: Sft
    optimizer: AdamW
    table: StepTable
    artifact: Image
    state: Image
    device: torch.device
    begun: float  # the largest weight of the artifact before the first step

    def restore(self, snapshot: Snapshot) -> None:
        self.artifact.read(snapshot.artifact)
        self.state.read(snapshot.state)

    def samples(self, step: int) -> list[int]:
        """The rows of a step, less those in quarantine: a hole, which shifts no other row."""
        settings = self.job.settings(step)
        hole = settings.get("quarantine", ())
        return [number for number in self.table.samples(step, settings["samples"], settings.get("behind", 0)) if number not in hole]

    @property
    def longest(self) -> int:
        """Tokens of the longest training row."""
        return int(np.diff(self.task.tokens.starts)[self.table.rows].max())

    def learning_rate(self, step: int) -> float:
        train, settings = self.job.config.train, self.job.settings(step)
        factor: float = settings.get("lr_factor", 1.0)
        return factor * learning_rate(step, settings["steps"], train.lr, train.schedule, train.warmup)


def build(job: Job, settings: Settings) -> Bench:
    """The state before the first step; it follows from config, settings and seed alone."""
    device = prepare_torch(settings)
    tokens = load_tokens(job.run.data_file)
    training, _ = split(tokens, job.config.data, job.config.train.seed)
    task = Sft(job.config, settings, tokens, device)
    optimizer = AdamW(task.artifact, job.config.train)
    artifact = Image(task.artifact, {"format": "pt"})
    if begun := job.plan.get("start_adapter"):
        put_in(artifact, job.run.start_adapter, begun)
    return Bench(
        job,
        settings,
        task,
        optimizer,
        step_table(tokens, training, job.config.data, job.config.train),
        artifact,
        Image(optimizer.state() | task.state()),
        device,
        float(optimizer.weights.detach().abs().max()),
    )
