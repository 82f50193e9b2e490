"""Whether a state can be what training made of it: a bit that flipped in memory, or a file damaged before its checksum, cannot.

Clipping bounds the moments, and AdamW the way a weight goes in a step; what is far beyond that is damage. Repairs nothing.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from safetensors.torch import load
from torch import Tensor

from holdfast.base.files import Json
from holdfast.run.snapshots.memory_file import Snapshot
from holdfast.trainer.common.images import ABSURD
from holdfast.trainer.optim.loss_scale import LossScale
from holdfast.trainer.state.restore import RestorePoint, find_state
from holdfast.trainer.step.training_state import TrainingState

_ROUNDING = 1.01
_TINY = 1e-12


def damage(training: TrainingState, step: int) -> str | None:
    """Return what is wrong with the state after `step`, with the tensor's name; None where training may have made it."""
    most = min(ABSURD, training.optimizer.spread * (training.begun + _reach(training, step)))
    weights = _worst(training.artifact.tensors, most, -most)
    if weights is not None:
        return weights
    clipped = training.job.config.train.max_grad_norm * _ROUNDING
    limits = training.optimizer.limits(clipped) | {"step": (float(step), 0.0)} | {"loss_scale": LossScale.LIMITS}
    kinds = {name: name.partition("/")[0] for name in training.state.tensors}
    found = (_worst({name: tensor}, *limits.get(kinds[name], (ABSURD, -ABSURD))) for name, tensor in training.state.tensors.items())
    return next((one for one in found if one is not None), None)


def sound_before(training: TrainingState, places: list[Path], found: RestorePoint) -> tuple[int, list[str]]:
    """Return (step of the newest sound state, 0: the beginning; what is wrong with each newer one). `training` then holds some state."""
    told: list[str] = []
    while found.snapshot is not None:
        training.restore(found.snapshot)
        wrong = damage(training, found.snapshot.step)
        if wrong is None:
            return found.snapshot.step, told
        told.append(f"{found.place} is damaged: {wrong}")
        found = find_state(training.job.run, places, limit=found.snapshot.step - 1)
    return 0, told


def difference(training: TrainingState, stored: Snapshot) -> Json | None:
    """Find where a stored state differs most from the training state: {tensor, at, stored, again, times}; None where no bit does.

    times: of the largest value the tensor has in the training state.
    """
    worst: Json | None = None
    for image, held in ((stored.artifact, training.artifact.tensors), (stored.state, training.state.tensors)):
        for name, tensor in load(image).items():
            again = held[name].detach().cpu()
            if torch.equal(tensor, again):
                continue
            apart = (tensor.double() - again.double()).abs().nan_to_num(nan=math.inf).flatten()
            at = int(apart.argmax())
            times = float(apart[at]) / max(float(again.abs().max()), _TINY)
            if worst is None or times > worst["times"]:
                values = {"stored": float(tensor.flatten()[at]), "again": float(again.flatten()[at])}
                worst = {"tensor": _plain(name), "at": _place(tensor, at), **values, "times": min(times, 1e300)}
    return worst


def _reach(training: TrainingState, step: int) -> float:
    """Return how far a weight may have moved after `step` steps."""
    train, factor = training.job.config.train, max(1.0, training.job.settings(step).lr_factor)
    return training.optimizer.reach * train.lr * factor * step


def _worst(tensors: dict[str, Tensor], most: float, least: float) -> str | None:
    """Name the first tensor with a value that is not finite, above `most` or below `least`; None where all are sound."""
    for name, tensor in tensors.items():
        values = tensor.detach().flatten()
        lowest, highest = torch.aminmax(values)  # NaN where one is
        if not (float(lowest) >= least and float(highest) <= most):
            bad = ~((values <= most) & (values >= least))
            at = int(bad.nonzero()[0])
            value = float(values[at])
            why = f"; training keeps it between {least:.3g} and {most:.3g}" if math.isfinite(value) else ""
            return f"{_plain(name)} holds {value:.3g} at {_place(tensor, at)} ({int(bad.sum()):,} of {len(values):,} values are such){why}"
    return None


def _plain(name: str) -> str:
    return name.replace("base_model.model.", "")


def _place(tensor: Tensor, at: int) -> list[int]:
    return [int(index) for index in torch.unravel_index(torch.tensor(at), tensor.shape)]
