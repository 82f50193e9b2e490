"""The protocol between the loop and what it trains. The loop knows nothing of text or tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from holdfast.core.files import Json


@dataclass(frozen=True)
class Batch:
    """One micro-batch. ids, targets, samples, positions: whole numbers [rows, positions]; targets are -100 where nothing is learned.

    `tokens` counts ids without padding, `labels` the targets.
    """

    numbers: tuple[int, ...]
    sources: tuple[str, ...]
    ids: Tensor
    targets: Tensor
    samples: Tensor
    positions: Tensor
    tokens: int
    labels: int


class Task(Protocol):
    """What is trained: its parameters, its micro-batches, its loss, and everything of it that a snapshot must hold."""

    model: nn.Module
    artifact: dict[str, Tensor]
    adapter_config: Json

    def batches(self, samples: list[int], budget: int) -> list[Batch]:
        """Micro-batches of these samples, none larger than `budget` padded tokens unless one sample alone is."""
        ...

    def loss_sum(self, batch: Batch, step: int) -> Tensor:
        """The sum of the losses of a micro-batch's labels: a scalar that can be differentiated."""
        ...

    def state(self) -> dict[str, Tensor]:
        """Tensors beside the artifact that influence later steps (live)."""
        ...
