"""Weights in one block of memory, and AdamW over it, all state in named tensors. The schedule is core/order/step_table.py's."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from holdfast.core.config.train import Train


class Block:
    """Named weights in one block of memory, their gradients in another; a kind of optimizer says what an update is.

    An update, a norm or a copy is then one operation and not one for each of hundreds of small matrices. `parameters`: fp32 leaves on one
    device; they move into the block. `rates`: by name, what the learning rate is multiplied by. `reach`: how many times the learning rate
    an update may move a weight (inf: unknown).
    """

    reach = math.inf

    def __init__(self, parameters: Mapping[str, Tensor], train: Train, rates: Mapping[str, float] | None = None) -> None:
        self.parameters = dict(parameters)
        self.train = train
        self.weights = _together(self.parameters.values())
        self.gradient = torch.zeros_like(self.weights)
        for parameter, part in zip(self.parameters.values(), self.parts(self.gradient), strict=True):
            parameter.grad = part
        self.updates = torch.tensor(0.0)
        self.rates = [(rates or {}).get(name, 1.0) for name in self.parameters]
        self.alike = all(rate == 1.0 for rate in self.rates)

    def state(self) -> dict[str, Tensor]:
        """Live state tensors as "kind/parameter", and the number of updates as "step". They exist before the first step."""
        parts = {
            f"{kind}/{name}": part
            for kind, block in self.blocks().items()
            for name, part in zip(self.parameters, self.parts(block), strict=True)
        }
        return parts | self.others() | {"step": self.updates}

    def kept(self) -> dict[str, Tensor]:
        """The weights that are the result, by name (live): those of the model, unless a kind computes with others."""
        return self.parameters

    def restored(self) -> None:
        """Called when a saved state was read into the tensors of `kept` and `state`: what else there is follows from them."""

    @contextmanager
    def judged(self) -> Iterator[None]:
        """The model has the weights of `kept` meanwhile."""
        yield

    def blocks(self) -> dict[str, Tensor]:
        """State as long as the weights, by kind."""
        return {}

    def others(self) -> dict[str, Tensor]:
        """State of other sizes, by name."""
        return {}

    def limits(self, clipped: float) -> dict[str, tuple[float, float]]:
        """(largest, smallest) value that training gives a kind of state, where that is known; clipped: the norm gradients are scaled to."""
        return {}

    def step(self, lr: float) -> None:
        """One update, after which the gradients are spent."""
        raise NotImplementedError

    def clear(self) -> None:
        """Set the gradients to zero."""
        self.gradient.zero_()

    def parts(self, block: Tensor) -> list[Tensor]:
        """The pieces of a block, in the parameters' shapes."""
        pieces = torch.split(block, [parameter.numel() for parameter in self.parameters.values()])
        return [piece.view(parameter.shape) for piece, parameter in zip(pieces, self.parameters.values(), strict=True)]

    def decay(self, lr: float) -> None:
        """Take the decoupled weight decay off."""
        if not self.train.weight_decay:
            return
        if self.alike:
            self.weights.mul_(1 - lr * self.train.weight_decay)
            return
        for part, rate in zip(self.parts(self.weights), self.rates, strict=True):
            part.mul_(1 - lr * rate * self.train.weight_decay)

    def scaled(self, update: Tensor) -> Tensor:
        """An update with each part's own rate."""
        if not self.alike:
            for part, rate in zip(self.parts(update), self.rates, strict=True):
                part.mul_(rate)
        return update


class AdamW(Block):
    """AdamW whose state exists from the start, so that it can be saved before the first step and after any."""

    reach = 100.0  # with usual betas it is below 8 (Cauchy-Schwarz over the two moments)

    def __init__(self, parameters: Mapping[str, Tensor], train: Train, rates: Mapping[str, float] | None = None) -> None:
        super().__init__(parameters, train, rates)
        self.mean, self.square = torch.zeros_like(self.weights), torch.zeros_like(self.weights)
        if not train.beta1**2 < train.beta2:
            self.reach = math.inf
        elif not self.alike:
            self.reach = AdamW.reach * max(1.0, *self.rates)

    def blocks(self) -> dict[str, Tensor]:
        return {"exp_avg": self.mean, "exp_avg_sq": self.square}

    def limits(self, clipped: float) -> dict[str, tuple[float, float]]:
        return {"exp_avg": (clipped, -clipped), "exp_avg_sq": (clipped * clipped, 0.0)}

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """One update, after which the gradients are spent.

        torch.optim.AdamW's operations in its order, so its bits; but the gradients' own memory takes what it would allocate. So an update
        cannot run out of memory half done.
        """
        self.updates += 1
        done, beta1, beta2 = self.updates.item(), self.train.beta1, self.train.beta2
        self.decay(lr)
        self.mean.lerp_(self.gradient, 1 - beta1)
        self.square.mul_(beta2).addcmul_(self.gradient, self.gradient, value=1 - beta2)
        divisor = torch.sqrt(self.square, out=self.gradient)
        divisor.div_((1 - beta2**done) ** 0.5).add_(self.train.epsilon)
        if self.alike:
            self.weights.addcdiv_(self.mean, divisor, value=-(lr / (1 - beta1**done)))
            return
        moved = zip(self.parts(self.weights), self.parts(self.mean), self.parts(divisor), self.rates, strict=True)
        for weight, mean, part, rate in moved:
            weight.addcdiv_(mean, part, value=-(lr * rate / (1 - beta1**done)))


def _together(parameters: Iterable[Tensor]) -> Tensor:
    """Move the parameters' values into one block, of which they are then parts: [elements of all]."""
    leaves = list(parameters)
    block = torch.cat([leaf.detach().reshape(-1) for leaf in leaves])
    for leaf, piece in zip(leaves, torch.split(block, [leaf.numel() for leaf in leaves]), strict=True):
        leaf.data = piece.view(leaf.shape)
    return block
