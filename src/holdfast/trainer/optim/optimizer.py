"""Weights in one block of memory, and AdamW over it, all state in named tensors. The schedule is run/sampling/step_table.py's.

Weights held in bf16 are updated in fp32 and rounded at random (trainer/optim/rounding.py); their gradients are bf16, too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from holdfast.config.train import Train
from holdfast.run.types import STRETCH
from holdfast.trainer.common.on_card import on_card
from holdfast.trainer.optim.host_moments import HostMoments
from holdfast.trainer.optim.rounding import StochasticRounder

# By rounding at random: a sum of errors of a unit of the last place at the most (a 128th), of variance move times unit, leaves a bound of
# 2.1 times what was moved at all once in 10^20 times (Freedman's inequality).
_SPREAD = 3.0


class FlatOptimizer:
    """Named weights in one block of memory, their gradients in another; a kind of optimizer says what an update is.

    An update, a norm or a copy is then one operation and not one for each of hundreds of small matrices. `parameters`: leaves of one
    type, fp32 or bf16, on one device; they move into the block. `rates`: by name, what the learning rate is multiplied by. `reach`: how
    many times the learning rate an update may move a weight (inf: unknown). `spread`: how many times further rounding may have taken it.
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
        self.spread = 1.0 if self.weights.dtype == torch.float32 else _SPREAD

    def state(self) -> dict[str, Tensor]:
        """Return the live state tensors as "kind/parameter", and the number of updates as "step". They exist before the first step."""
        parts = {
            f"{kind}/{name}": part
            for kind, block in self.blocks().items()
            for name, part in zip(self.parameters, self.parts(block), strict=True)
        }
        return parts | self.others() | {"step": self.updates}

    def kept(self) -> dict[str, Tensor]:
        """Return the weights that are the result, live, by name: the model's own, unless a kind of optimizer computes with others."""
        return self.parameters

    def restored(self) -> None:
        """Derive whatever else the optimizer keeps, after a saved state was read into the tensors of `kept` and `state`."""

    @contextmanager
    def judged(self) -> Iterator[None]:
        """Give the model the weights of `kept` within the context, for evaluation."""
        yield

    def blocks(self) -> dict[str, Tensor]:
        """Return the state blocks that are as long as the weights, by kind."""
        return {}

    def others(self) -> dict[str, Tensor]:
        """Return the state of other sizes, by name."""
        return {}

    def limits(self, clipped: float) -> dict[str, tuple[float, float]]:
        """Return the known (largest, smallest) value of each kind of state. clipped: norm the gradients are clipped to."""
        return {}

    def step(self, lr: float) -> None:
        """Update the weights once at rate `lr`. The gradients are spent afterwards."""
        raise NotImplementedError

    def clear(self) -> None:
        """Set the gradients to zero."""
        self.gradient.zero_()

    def scaled(self, update: Tensor) -> Tensor:
        """Multiply an update of all weights in place by each part's own rate."""
        if not self.alike:
            for part, rate in zip(self.parts(update), self.rates, strict=True):
                part.mul_(rate)
        return update

    def norm(self) -> Tensor:
        """Return the norm of all gradients, computed in fp32."""
        most = len(self.gradient) if self.gradient.dtype == torch.float32 else STRETCH  # what is not may be widened on the way
        pieces = [self.gradient[start : start + most] for start in range(0, len(self.gradient), most)]
        norms = [torch.linalg.vector_norm(piece, dtype=torch.float32) for piece in pieces]
        norm: Tensor = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))
        return norm

    def parts(self, block: Tensor) -> list[Tensor]:
        """Split a flat block into views in the parameters' shapes."""
        pieces = torch.split(block, [parameter.numel() for parameter in self.parameters.values()])
        return [piece.view(parameter.shape) for piece, parameter in zip(pieces, self.parameters.values(), strict=True)]


class Elementwise(FlatOptimizer):
    """An optimizer whose update of a weight follows from its own gradient and moments alone: it goes over the block in stretches.

    What an update needs beside the block is then a few MiB: copies of its own, weights in bf16 that are widened and rounded again, moments
    that come from main memory. The bits are the same however the block is cut.
    """

    KINDS: tuple[str, ...] = ()  # of the moments
    STRETCH = STRETCH  # weights that are updated at once

    def __init__(self, parameters: Mapping[str, Tensor], train: Train, rates: Mapping[str, float] | None = None) -> None:
        super().__init__(parameters, train, rates)
        size, device = self.weights.numel(), self.weights.device
        stretch = min(size, self.STRETCH)
        self.away = HostMoments(len(self.KINDS), size, stretch, device) if train.offload == "optimizer" and on_card(device) else None
        self.moments = self.away.host if self.away else self.made(size, device)
        self.rounded = StochasticRounder(train.seed, stretch, device) if self.weights.dtype != torch.float32 else None
        self.stretches = self._cut(stretch)

    def made(self, size: int, device: torch.device) -> list[Tensor]:
        """Allocate the moments of a block of `size` weights, all zero."""
        return [torch.zeros(size, device=device) for _ in self.KINDS]

    def blocks(self) -> dict[str, Tensor]:
        return dict(zip(self.KINDS, self.moments, strict=True))

    def parts_of_moments(self, start: int, end: int) -> list[Tensor]:
        """Return what `move` is given of the moments for the stretch [start, end)."""
        return [part[start:end] for part in self.moments]

    def move(self, weights: Tensor, gradient: Tensor, moments: list[Tensor], lr: float) -> None:
        """Update a stretch of fp32 weights in place; its gradient, fp32, is spent."""
        raise NotImplementedError

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Update the weights once at rate `lr`. The gradients are spent afterwards."""
        self.updates += 1
        bounds = [(start, end) for start, end, _ in self.stretches]
        visits = self.away.visit(bounds) if self.away else (self.parts_of_moments(start, end) for start, end in bounds)
        for number, ((start, end, rate), moments) in enumerate(zip(self.stretches, visits, strict=True)):
            weights, gradient = self.weights[start:end], self.gradient[start:end]
            if self.rounded is None:
                self.move(weights, gradient, moments, lr * rate)
                continue
            with self.rounded.widened(weights, gradient, int(self.updates.item()), number) as wide:
                self.move(*wide, moments, lr * rate)

    def decay(self, weights: Tensor, lr: float) -> None:
        """Take the decoupled weight decay off."""
        if self.train.weight_decay:
            weights.mul_(1 - lr * self.train.weight_decay)

    def _cut(self, most: int) -> list[tuple[int, int, float]]:
        """Cut the weights into stretches (start, end, rate) of at most `most` weights, each with one rate."""
        ends = list(itertools.accumulate(parameter.numel() for parameter in self.parameters.values()))
        found, start = [], 0
        for rate, group in itertools.groupby(zip(ends, self.rates, strict=True), key=lambda pair: pair[1]):
            last = max(end for end, _ in group)
            found += [(at, min(at + most, last), rate) for at in range(start, last, most)]
            start = last
        return found


class AdamW(Elementwise):
    """AdamW whose state exists from the start, so that it can be saved before the first step and after any."""

    KINDS = ("exp_avg", "exp_avg_sq")
    reach = 100.0  # with usual betas it is below 8 (Cauchy-Schwarz over the two moments)

    def __init__(self, parameters: Mapping[str, Tensor], train: Train, rates: Mapping[str, float] | None = None) -> None:
        super().__init__(parameters, train, rates)
        self.reach = AdamW.reach * max(1.0, *self.rates) if train.beta1**2 < train.beta2 else math.inf

    def limits(self, clipped: float) -> dict[str, tuple[float, float]]:
        return {"exp_avg": (clipped, -clipped), "exp_avg_sq": (clipped * clipped, 0.0)}

    def move(self, weights: Tensor, gradient: Tensor, moments: list[Tensor], lr: float) -> None:
        """Do torch.optim.AdamW's operations in its order, hence with its bits; but use the gradient's memory for what it would allocate.

        So an update cannot run out of memory half done.
        """
        mean, square = moments
        done, beta1, beta2 = self.updates.item(), self.train.beta1, self.train.beta2
        self.decay(weights, lr)
        mean.lerp_(gradient, 1 - beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        divisor = torch.sqrt(square, out=gradient)
        divisor.div_((1 - beta2**done) ** 0.5).add_(self.train.epsilon)
        weights.addcdiv_(mean, divisor, value=-(lr / (1 - beta1**done)))


def _together(parameters: Iterable[Tensor]) -> Tensor:
    """Move the parameters' values into one block, of which they are then parts: [elements of all]."""
    leaves = list(parameters)
    block = torch.cat([leaf.detach().reshape(-1) for leaf in leaves])
    for leaf, piece in zip(leaves, torch.split(block, [leaf.numel() for leaf in leaves]), strict=True):
        leaf.data = piece.view(leaf.shape)
    return block
