"""AdamW over one block of memory, its whole state laid open as named tensors. The schedule is core/order/step_table.py's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from holdfast.core.config.config import Train


class AdamW:
    """AdamW whose state exists from the start, so that it can be saved before the first step and after any.

    Weights, gradients and moments lie in one block each, the named tensors are parts of it: an update, a norm or a copy is then one
    operation and not one for each of hundreds of small matrices. `parameters`: fp32 leaves on one device; they move into the block.
    """

    def __init__(self, parameters: Mapping[str, Tensor], train: Train) -> None:
        self.parameters = dict(parameters)
        self.train = train
        self.weights = _together(self.parameters.values())
        self.gradient = torch.zeros_like(self.weights)
        for parameter, part in zip(self.parameters.values(), self._parts(self.gradient), strict=True):
            parameter.grad = part
        self.mean, self.square = torch.zeros_like(self.weights), torch.zeros_like(self.weights)
        self.updates = torch.tensor(0.0)

    def state(self) -> dict[str, Tensor]:
        """Live state tensors as "kind/parameter", and the number of updates as "step"."""
        parts = {
            f"{kind}/{name}": part
            for kind, block in (("exp_avg", self.mean), ("exp_avg_sq", self.square))
            for name, part in zip(self.parameters, self._parts(block), strict=True)
        }
        return parts | {"step": self.updates}

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """One update, after which the gradients are spent.

        torch.optim.AdamW's operations in its order, so its bits; but the gradients' own memory takes what it would allocate. So an update
        cannot run out of memory half done.
        """
        self.updates += 1
        done, beta1, beta2 = self.updates.item(), self.train.beta1, self.train.beta2
        if self.train.weight_decay:
            self.weights.mul_(1 - lr * self.train.weight_decay)
        self.mean.lerp_(self.gradient, 1 - beta1)
        self.square.mul_(beta2).addcmul_(self.gradient, self.gradient, value=1 - beta2)
        divisor = torch.sqrt(self.square, out=self.gradient)
        divisor.div_((1 - beta2**done) ** 0.5).add_(self.train.epsilon)
        self.weights.addcdiv_(self.mean, divisor, value=-(lr / (1 - beta1**done)))

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
