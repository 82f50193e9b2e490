"""The optimizer of tiny's pretraining: Muon for matrices, AdamW for all else. It knows nothing of data or schedules.

Muon (orthogonalised momentum) is by Keller Jordan and others (https://kellerjordan.github.io/posts/muon/); torch has one too, which
computes in bf16 and is slow on CPUs without bf16 units. One short trial of each optimizer
spoke for it; that is not a measurement.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch

MOMENTUM = 0.95
WEIGHT_DECAY = 0.05


class MuonWithAdamW:
    """Update in place the weights of a model. Matrices of one shape are orthogonalised together."""

    def __init__(self, model: torch.nn.Module) -> None:
        by_shape: dict[tuple[int, ...], list[torch.nn.Parameter]] = defaultdict(list)
        others: list[torch.nn.Parameter] = []
        for name, weight in model.named_parameters():
            if weight.dim() == 2 and "embed" not in name:
                by_shape[tuple(weight.shape)].append(weight)
            else:
                others.append(weight)
        self.matrices = list(by_shape.values())
        self.momenta = [torch.zeros(len(weights), *weights[0].shape) for weights in self.matrices]
        self.adamw = torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.0)

    def state(self) -> dict[str, Any]:
        return {"momenta": self.momenta, "adamw": self.adamw.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        self.momenta = state["momenta"]
        self.adamw.load_state_dict(state["adamw"])

    @torch.no_grad()
    def step(self, matrix_lr: float, other_lr: float) -> None:
        for group in self.adamw.param_groups:
            group["lr"] = other_lr
        self.adamw.step()
        self.adamw.zero_grad()
        for weights, momentum in zip(self.matrices, self.momenta, strict=True):
            gradient = torch.stack([weight.grad for weight in weights if weight.grad is not None])
            momentum.lerp_(gradient, 1 - MOMENTUM)
            update = orthogonalised(gradient.lerp(momentum, MOMENTUM))
            scale = max(1.0, update.shape[1] / update.shape[2]) ** 0.5
            for weight, change in zip(weights, update, strict=True):
                weight.mul_(1 - matrix_lr * WEIGHT_DECAY).add_(change, alpha=-matrix_lr * scale)
                weight.grad = None


def orthogonalised(stack: torch.Tensor) -> torch.Tensor:
    """Bring all singular values of each matrix near 1 by five Newton-Schulz steps (the coefficients are Jordan's)."""
    tall = stack.shape[1] > stack.shape[2]
    x = stack.mT if tall else stack
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        square = x @ x.mT
        x = 3.4445 * x + (2.0315 * (square @ square) - 4.7750 * square) @ x
    return x.mT if tall else x
