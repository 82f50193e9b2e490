"""Optimizers of one moment, over the whole block at once: Lion and SGD."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from holdfast.core.config.train import Train
from holdfast.trainer.optimizer import Block


class _OneMoment(Block):
    def __init__(self, parameters: Mapping[str, Tensor], train: Train, rates: Mapping[str, float] | None = None) -> None:
        super().__init__(parameters, train, rates)
        self.mean = torch.zeros_like(self.weights)

    def blocks(self) -> dict[str, Tensor]:
        return {"exp_avg": self.mean}


class Lion(_OneMoment):
    """Chen et al. 2023 (arXiv 2302.06675): the sign of a moment, whose own memory is longer (beta2) than the update's (beta1)."""

    reach = 2.0

    def __init__(self, parameters: Mapping[str, Tensor], train: Train, rates: Mapping[str, float] | None = None) -> None:
        super().__init__(parameters, train, rates)
        self.reach = Lion.reach * max(1.0, *self.rates)

    def limits(self, clipped: float) -> dict[str, tuple[float, float]]:
        return {"exp_avg": (clipped, -clipped)}

    @torch.no_grad()
    def step(self, lr: float) -> None:
        self.updates += 1
        self.decay(lr)
        now = torch.lerp(self.mean, self.gradient, 1 - self.train.beta1)
        self.mean.lerp_(self.gradient, 1 - self.train.beta2)
        self.weights.sub_(self.scaled(now.sign_()), alpha=lr)


class Sgd(_OneMoment):
    """Gradient descent with momentum beta1 (0: none), as torch.optim.SGD computes it; the decay is decoupled, as in the others."""

    @torch.no_grad()
    def step(self, lr: float) -> None:
        self.updates += 1
        self.decay(lr)
        self.mean.mul_(self.train.beta1).add_(self.gradient)
        self.gradient.copy_(self.mean)
        self.weights.sub_(self.scaled(self.gradient), alpha=lr)
