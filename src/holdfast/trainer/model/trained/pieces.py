"""Trained weights in pieces: a unit for each layer and one for all else, each cut into as many pieces as a step has parts.

Which pieces there are follows from the model and `train.reduction_parts` alone; a rank holds neighbours of them, one rank all. What is
summed over pieces is summed by piece, so a norm has the same bits on any number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.trainer.optim.optimizer import FlatOptimizer
from holdfast.trainer.protocol.step_hooks import StepHooks


@dataclass(frozen=True)
class Unit:
    """Tensors, by name, that come and go together, in flat order. size: elements; piece: of each of its pieces but the last ones."""

    tensors: Mapping[str, Tensor]
    piece: int

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], parts: int) -> Unit:
        return cls(tensors, -(-sum(one.numel() for one in tensors.values()) // parts))

    @property
    def size(self) -> int:
        return sum(one.numel() for one in self.tensors.values())

    def bounds(self, number: int, count: int = 1) -> tuple[int, int]:
        """Return (start, end) of `count` pieces from piece `number` on; the last ones may be shorter, or empty."""
        return min(self.size, number * self.piece), min(self.size, (number + count) * self.piece)

    def within(self, start: int, end: int) -> list[tuple[str, int, int]]:
        """Return (tensor, from, to) of each stretch of a tensor between two places of the unit."""
        found, at = [], 0
        for name, tensor in self.tensors.items():
            low, high = max(start - at, 0), min(end - at, tensor.numel())
            if low < high:
                found.append((name, low, high))
            at += tensor.numel()
        return found


class Pieces(StepHooks):
    """The step hooks of weights in pieces, where one rank holds all of them: gradients and their norm are added as several ranks add them.

    units: in the order of the optimizer's block. parts: of a step.
    """

    rounds = True

    def __init__(self, units: Sequence[Unit], parts: int, number: int = 0, size: int = 1) -> None:
        super().__init__()
        self.units, self.parts, self.number, self.size = units, parts, number, size
        self.each = parts // size  # pieces of a unit that a rank holds

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All tensors, in the order of the units."""
        return {name: tensor for unit in self.units for name, tensor in unit.tensors.items()}

    def own(self, unit: Unit) -> tuple[int, int]:
        """Return (start, end) of this rank's pieces in a unit."""
        return unit.bounds(self.number * self.each, self.each)

    def norm(self, optimizer: FlatOptimizer, add: Callable[[Tensor], None]) -> Tensor:
        norms = torch.zeros(len(self.units), self.parts, device=optimizer.gradient.device)
        at = 0
        for row, unit in zip(norms, self.units, strict=True):
            first, last = self.own(unit)
            for piece in range(self.number * self.each, (self.number + 1) * self.each):
                start, end = unit.bounds(piece)
                if start < end:
                    row[piece] = torch.linalg.vector_norm(optimizer.gradient[at + start - first : at + end - first])
            at += last - first
        if self.size > 1:
            add(norms)  # each is of one rank, and 0 on the others: exact in any order
        norm: Tensor = torch.linalg.vector_norm(norms)
        return norm
