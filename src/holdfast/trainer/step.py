"""One step as a pure function: gradients of given samples at given weights, gate, update. Saves and reports nothing."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from holdfast.trainer.exhausted import tag_out_of_memory
from holdfast.trainer.optimizer import Block
from holdfast.trainer.task import AnyTask, Batch

# Called before each micro-batch and before each backward pass, and when the gradients are complete (gate); the factor for the micro-batch's
# loss, or for its gradients.
Announce = Callable[[str, int, Batch], float]


@dataclass(frozen=True)
class Gradients:
    """What a step computed. loss: mean over the step's labels; grad_norm: before clipping; both may be non-finite.

    right: labels whose logit was the largest, or pairs whose better answer is ahead. measured: what else was summed over labels.
    """

    loss: float
    grad_norm: float
    tokens: int
    labels: int
    right: int
    measured: dict[str, float] = field(default_factory=dict)

    @property
    def finite(self) -> bool:
        """The gate: only a step whose loss and gradient norm are finite may move the weights."""
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


def nothing() -> None:
    """Nothing is to be done while a card is still busy with the step."""


def compute_gradients(
    task: AnyTask,
    optimizer: Block,
    step: int,
    samples: list[int],
    budget: int,
    announce: Announce,
    meanwhile: Callable[[], None] = nothing,
) -> Gradients:
    """Accumulate the gradient of the mean loss over all labels of `samples` into the parameters' `.grad`.

    Masks and order follow from (seed, step, samples) alone; `budget` (tokens per micro-batch) changes only rounding. Raises OutOfMemory.
    `meanwhile` is called when all has been asked of the device, before the step waits for it.
    """
    batches = task.batches(samples, budget)
    labels = sum(batch.labels for batch in batches)
    torch.manual_seed(step)  # for whatever draws from the generator all the same
    optimizer.clear()
    parts = [_accumulate(task, optimizer, step, number, batch, labels, announce) for number, batch in enumerate(batches)]
    total, measured = sum(parts[1:], start=parts[0]).tensor_split([1])
    with tag_out_of_memory(batches[-1]):
        announce("gate", len(batches) - 1, batches[-1])
        task.upkeep.gradients()
    norm = torch.linalg.vector_norm(optimizer.gradient)
    values = torch.cat([total / labels, norm.double().reshape(1), measured])
    with tag_out_of_memory(batches[-1]):
        meanwhile()
    loss_value, norm_value, right_value, *others = values.tolist()  # the step's one synchronisation
    more = dict(zip(task.measures[1:], others, strict=True))
    return Gradients(loss_value, norm_value, sum(batch.tokens for batch in batches), labels, int(right_value), more)


def _accumulate(task: AnyTask, optimizer: Block, step: int, number: int, batch: Batch, labels: int, announce: Announce) -> Tensor:
    """Add one micro-batch's share to the gradients; its loss and what was measured beside it, [1 + measures]. Raises OutOfMemory."""
    with tag_out_of_memory(batch):
        factor = announce("forward", number, batch)
        loss, measured = task.loss_sum(batch, step)
        if factor != 1.0:
            loss = loss * factor
        factor = announce("backward", number, batch)
        (loss / labels).backward()  # type: ignore[no-untyped-call]
        if factor != 1.0:
            optimizer.gradient.mul_(factor)
        return torch.cat([loss.detach().double().reshape(1), measured.double().reshape(-1)])


def update(optimizer: Block, computed: Gradients, lr: float, max_grad_norm: float) -> None:
    """Clip the gradients to `max_grad_norm` and take one optimizer step. Only after the gate."""
    factor = max_grad_norm / (computed.grad_norm + 1e-6)
    if factor < 1.0:
        optimizer.gradient.mul_(factor)
    optimizer.step(lr)


def gradients_sha256(optimizer: Block) -> str:
    """SHA-256 over names and bytes of all gradients, in the order of names."""
    digest = hashlib.sha256()
    for name, parameter in sorted(optimizer.parameters.items()):
        assert parameter.grad is not None
        digest.update(name.encode())
        digest.update(parameter.grad.float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
