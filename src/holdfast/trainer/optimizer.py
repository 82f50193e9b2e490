"""AdamW with its whole state laid open as named tensors. The schedule is core/table.py's."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from holdfast.core.config import Train


class AdamW:
    """torch.optim.AdamW whose state exists from the start, so that it can be saved before the first step and after any."""

    def __init__(self, parameters: Mapping[str, Tensor], train: Train) -> None:
        self.parameters = dict(parameters)
        self.inner = torch.optim.AdamW(
            self.parameters.values(),
            lr=train.lr,
            betas=(train.beta1, train.beta2),
            eps=train.epsilon,
            weight_decay=train.weight_decay,
        )
        for parameter in self.parameters.values():
            self.inner.state[parameter] = {
                "step": torch.tensor(0.0),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }

    def state(self) -> dict[str, Tensor]:
        """Live state tensors as "kind/parameter"."""
        return {
            f"{kind}/{name}": tensor for name, parameter in self.parameters.items() for kind, tensor in self.inner.state[parameter].items()
        }

    def step(self, lr: float) -> None:
        for group in self.inner.param_groups:
            group["lr"] = lr
        self.inner.step()

    def clear(self) -> None:
        self.inner.zero_grad(set_to_none=True)
