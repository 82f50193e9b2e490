"""Optimizers of one moment: Lion and SGD."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from holdfast.config.train import Train
from holdfast.trainer.optim.optimizer import Elementwise


class Lion(Elementwise):
    """Chen et al. 2023 (arXiv 2302.06675): the sign of a moment, whose own memory is longer (beta2) than the update's (beta1)."""

    KINDS = ("exp_avg",)
    reach = 2.0

    def __init__(self, parameters: Mapping[str, Tensor], train: Train, rates: Mapping[str, float] | None = None) -> None:
        super().__init__(parameters, train, rates)
        self.reach = Lion.reach * max(1.0, *self.rates)

    def limits(self, clipped: float) -> dict[str, tuple[float, float]]:
        return {"exp_avg": (clipped, -clipped)}

    def move(self, weights: Tensor, gradient: Tensor, moments: list[Tensor], lr: float) -> None:
        (mean,) = moments
        self.decay(weights, lr)
        now = torch.lerp(mean, gradient, 1 - self.train.beta1)
        mean.lerp_(gradient, 1 - self.train.beta2)
        weights.sub_(now.sign_(), alpha=lr)


class Sgd(Elementwise):
    """Gradient descent with momentum beta1 (0: none), as torch.optim.SGD computes it; the decay is decoupled, as in the others."""

    KINDS = ("exp_avg",)

    def move(self, weights: Tensor, gradient: Tensor, moments: list[Tensor], lr: float) -> None:
        (mean,) = moments
        self.decay(weights, lr)
        mean.mul_(self.train.beta1).add_(gradient)
        weights.sub_(mean, alpha=lr)
