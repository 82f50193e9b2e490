"""The protocol between the loop and what it trains. The loop knows nothing of text or tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from holdfast.core.files import Json


@dataclass(frozen=True)
class Batch:
    """One micro-batch. ids, samples, positions: whole numbers [rows, width], -1 in the last two where there is padding.

    label_at: positions, counted through all rows, whose next token is learned; label_ids: those tokens; both [labels].
    packed: samples stand one after the other in a single row, `lengths` long, between `ends` (0 and where each ends, int32, on the device);
    else each has a row of its own.
    """

    numbers: tuple[int, ...]
    sources: tuple[str, ...]
    ids: Tensor
    samples: Tensor
    positions: Tensor
    label_at: Tensor
    label_ids: Tensor
    lengths: tuple[int, ...]
    ends: Tensor | None
    packed: bool
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

    def loss_sum(self, batch: Batch, step: int) -> tuple[Tensor, Tensor]:
        """(the sum of the losses of a micro-batch's labels, a scalar that can be differentiated; how many of them are predicted right)"""
        ...

    def state(self) -> dict[str, Tensor]:
        """Tensors beside the artifact that influence later steps (live)."""
        ...
