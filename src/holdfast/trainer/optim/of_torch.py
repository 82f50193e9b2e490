"""torch's own optimizers over single matrices, their state laid open: Adafactor, and Muon with AdamW for what is no matrix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from holdfast.config.train import Train
from holdfast.trainer.optim.optimizer import FlatOptimizer

_NO_MATRICES = ("embed", "lm_head", "wte", "wpe")  # whose rows are looked up, and the output layer: Muon is not for them


class OfTorch(FlatOptimizer):
    """Holds optimizers of torch's. Their state is made by a step that moves nothing, then set to zero: it is there from the start."""

    def __init__(self, parameters: Mapping[str, Tensor], train: Train, rates: Mapping[str, float] | None = None) -> None:
        super().__init__(parameters, train, rates)
        self.inner = self.made()
        with torch.no_grad():
            for one in self.inner:
                for group in one.param_groups:
                    group["lr"] = 0.0
                one.step()
                for held in one.state.values():
                    for value in held.values():
                        value.zero_()

    def made(self) -> list[torch.optim.Optimizer]:
        """Build the optimizers, each with one parameter group per parameter, in the parameters' order."""
        raise NotImplementedError

    def others(self) -> dict[str, Tensor]:
        names = {id(parameter): name for name, parameter in self.parameters.items()}
        states = ((names[id(parameter)], held) for one in self.inner for parameter, held in one.state.items())
        return {f"{kind}/{name}": value for name, held in states for kind, value in held.items()}

    def step(self, lr: float) -> None:
        self.updates += 1
        rates = dict(zip(map(id, self.parameters.values()), self.rates, strict=True))
        for one in self.inner:
            for group in one.param_groups:
                group["lr"] = lr * rates[id(group["params"][0])]
            one.step()


def _groups(parameters: list[Tensor]) -> Any:
    return [{"params": [parameter]} for parameter in parameters]


class Adafactor(OfTorch):
    """Shazeer and Stern 2018 (arXiv 1804.04235): a matrix's squares as one row and one column; train.lr is relative to a weight's size."""

    def made(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.Adafactor(_groups([*self.parameters.values()]), weight_decay=self.train.weight_decay, foreach=False)]


class Muon(OfTorch):
    """Jordan et al. 2024: the moment of a matrix made orthogonal, at the size of AdamW's updates; what is no matrix has AdamW."""

    def made(self) -> list[torch.optim.Optimizer]:
        train = self.train
        matrices = [one for name, one in self.parameters.items() if one.dim() == 2 and not any(part in name for part in _NO_MATRICES)]
        known = set(map(id, matrices))
        rest = [one for one in self.parameters.values() if id(one) not in known]
        found: list[torch.optim.Optimizer] = []
        if matrices:
            found.append(torch.optim.Muon(_groups(matrices), weight_decay=train.weight_decay, adjust_lr_fn="match_rms_adamw"))
        if rest:
            betas = (train.beta1, train.beta2)
            found.append(torch.optim.AdamW(_groups(rest), betas=betas, eps=train.epsilon, weight_decay=train.weight_decay, foreach=False))
        return found
