"""AdamW without a schedule: gradients are taken between the moving weights and their mean, and the mean is what is kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from holdfast.config.train import Train
from holdfast.trainer.optim.optimizer import FlatOptimizer


class ScheduleFree(FlatOptimizer):
    """Defazio et al. 2024 (arXiv 2405.15682), with the authors' weights for the mean: squares of the largest learning rate so far.

    The model computes with y = (1 - beta1) z + beta1 x; z moves, x is the mean of all z. The authors hold y and z, and find x by a product
    that rounds; here x and z are held and y follows from them, so that judging x in between changes no bit of what comes after.
    """

    def __init__(self, parameters: Mapping[str, Tensor], train: Train, rates: Mapping[str, float] | None = None) -> None:
        super().__init__(parameters, train, rates)
        self.moving, self.mean = self.weights.clone(), self.weights.clone()
        self.square = torch.zeros_like(self.weights)
        self.peak, self.total = torch.tensor(0.0), torch.tensor(0.0, dtype=torch.float64)

    def kept(self) -> dict[str, Tensor]:
        return dict(zip(self.parameters, self.parts(self.mean), strict=True))

    def blocks(self) -> dict[str, Tensor]:
        return {"z": self.moving, "exp_avg_sq": self.square}

    def others(self) -> dict[str, Tensor]:
        return {"peak_lr/all": self.peak, "mean_weight/all": self.total}

    def limits(self, clipped: float) -> dict[str, tuple[float, float]]:
        return {"exp_avg_sq": (clipped * clipped, 0.0)}

    @torch.no_grad()
    def restored(self) -> None:
        torch.lerp(self.moving, self.mean, self.train.beta1, out=self.weights)

    @contextmanager
    def judged(self) -> Iterator[None]:
        self.weights.copy_(self.mean)
        try:
            yield
        finally:
            self.restored()

    @torch.no_grad()
    def step(self, lr: float) -> None:
        self.updates += 1
        done, beta2 = self.updates.item(), self.train.beta2
        self.peak.clamp_(min=lr)
        weight = float(self.peak) ** 2
        self.total += weight
        self.square.mul_(beta2).addcmul_(self.gradient, self.gradient, value=1 - beta2)
        divisor = self.weights  # y is made anew below
        if self.train.weight_decay:
            self.moving.add_(self.scaled(divisor.mul_(-lr * self.train.weight_decay)))
        torch.sqrt(self.square, out=divisor).div_((1 - beta2**done) ** 0.5).add_(self.train.epsilon)
        self.moving.add_(self.scaled(self.gradient.div_(divisor).mul_(-lr)))
        self.mean.lerp_(self.moving, weight / float(self.total) if weight else 0.0)
        self.restored()
