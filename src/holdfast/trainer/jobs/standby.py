"""A trainer that is ready before it is needed: imports done, the model loaded where there is no device to keep free. Trains nothing."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from holdfast.base.errors import DONE
from holdfast.base.safe_open import log_descriptor
from holdfast.base_model.folder import read_model
from holdfast.run.folder import RunFolder
from holdfast.run.timeline import settings_of_process
from holdfast.trainer.common.job import open_job, register
from holdfast.trainer.common.refuse import refuse_broken_weights
from holdfast.trainer.loop.loop import train
from holdfast.trainer.step.training_state import TrainingState, build


def stand_by(path: Path, mode: str) -> int:
    """Prepare, then wait on standard input for an attempt's number and become its trainer; end when the input ends.

    mode: `model` holds the model itself, for runs on the CPU; with `imports` its files are only read into the page
    cache, and no device is touched.
    """
    run = RunFolder(path)
    training = _training(run) if mode == "model" else None
    if training is None and run.config().model:
        _cache_weights(read_model(run.config().model).folder)
    number = sys.stdin.readline().strip()
    if not number:
        return DONE
    _log_to(run.attempt(int(number)) / "output.log")
    return train(register(path, int(number)), training)


def _training(run: RunFolder) -> TrainingState:
    """Build the training state of the run's next step; the attempt builds another where its settings differ."""
    job = open_job(run, 0, run.path, {})
    training = build(job, settings_of_process(job.timeline))
    refuse_broken_weights(training.task.model, job.config.model)
    _warm_up(training)
    return training


def _warm_up(training: TrainingState) -> None:
    """Pass a few tokens through the model and back, so that what libraries do at their first call is done. Moves no weight."""
    loss, _ = training.task.loss_sum(training.task.small_batch(), 1)
    loss.backward()  # type: ignore[no-untyped-call]
    training.optimizer.clear()


def _cache_weights(folder: Path) -> None:
    for file in folder.glob("*.safetensors"):
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
        finally:
            os.close(descriptor)


def _log_to(log: Path) -> None:
    descriptor = log_descriptor(log)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.close(descriptor)
