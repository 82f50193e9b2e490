"""AdamW over one block of memory, its whole state laid open as named tensors. The schedule is core/table.py's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from holdfast.core.config import Train


class AdamW:
    """torch.optim.AdamW whose state exists from the start, so that it can be saved before the first step and after any.

    Weights, gradients and moments lie in one block each, the named tensors are parts of it: an update, a norm or a copy is then one
    operation and not one for each of hundreds of small matrices. `parameters`: fp32 leaves on one device; they move into the block.
    """

    def __init__(self, parameters: Mapping[str, Tensor], train: Train) -> None:
        self.parameters = dict(parameters)
        self.weights = _together(self.parameters.values())
        self.gradient = self.weights.grad = torch.zeros_like(self.weights)
        for parameter, part in zip(self.parameters.values(), self._parts(self.gradient), strict=True):
            parameter.grad = part
        self.inner = torch.optim.AdamW(
            [self.weights], lr=train.lr, betas=(train.beta1, train.beta2), eps=train.epsilon, weight_decay=train.weight_decay
        )
        moments = {kind: torch.zeros_like(self.weights) for kind in ("exp_avg", "exp_avg_sq")}
        self.inner.state[self.weights] = {"step": torch.tensor(0.0), **moments}

    def state(self) -> dict[str, Tensor]:
        """Live state tensors as "kind/parameter", and the number of updates as "step"."""
        kinds = self.inner.state[self.weights]
        parts = {
            f"{kind}/{name}": part
            for kind in ("exp_avg", "exp_avg_sq")
            for name, part in zip(self.parameters, self._parts(kinds[kind]), strict=True)
        }
        return parts | {"step": kinds["step"]}

    def step(self, lr: float) -> None:
        for group in self.inner.param_groups:
            group["lr"] = lr
        self.inner.step()

    def clear(self) -> None:
        """Set the gradients to zero."""
        self.gradient.zero_()

    def _parts(self, block: Tensor) -> list[Tensor]:
        pieces = torch.split(block, [parameter.numel() for parameter in self.parameters.values()])
        return [piece.view(parameter.shape) for piece, parameter in zip(pieces, self.parameters.values(), strict=True)]


def _together(parameters: Iterable[Tensor]) -> Tensor:
    """Move the parameters' values into one block, of which they are then parts: [elements of all]."""
    leaves = list(parameters)
    block = torch.cat([leaf.detach().reshape(-1) for leaf in leaves])
    for leaf, piece in zip(leaves, torch.split(block, [leaf.numel() for leaf in leaves]), strict=True):
        leaf.data = piece.view(leaf.shape)
    return block
