"""AdamW whose moments are 8 bits a number, by bitsandbytes: 256 numbers share a scale. All weights are one stretch of such blocks."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from holdfast.core.config.train import Train
from holdfast.trainer.optimizer import Block
from holdfast.trainer.quantising import bitsandbytes

_BLOCK = 256


class AdamW8Bit(Block):
    """Dettmers et al. 2021 (arXiv 2110.02861). paged: the moments in memory that the driver moves to the host when the device is short."""

    def __init__(self, parameters: Mapping[str, Tensor], train: Train, rates: Mapping[str, float] | None = None) -> None:
        super().__init__(parameters, train, rates)
        self.library = bitsandbytes(f"train.optimizer {train.optimizer}").functional
        size, device = self.weights.numel(), self.weights.device
        paged = train.optimizer == "paged" and device.type == "cuda"
        scales = -(-size // _BLOCK)
        self.moments = [
            self.library.get_paged(size, dtype=torch.uint8, device=device) if paged else torch.zeros(size, dtype=torch.uint8, device=device)
            for _ in range(2)
        ]
        self.scales = [torch.zeros(scales, device=device) for _ in range(2)]
        self.codes = [self.library.create_dynamic_map(signed=signed).to(device) for signed in (True, False)]

    def others(self) -> dict[str, Tensor]:
        pairs = zip(("exp_avg", "exp_avg_sq"), self.moments, self.scales, strict=True)
        return {f"{kind}_{what}/all": held for kind, moment, scale in pairs for what, held in (("bytes", moment), ("scales", scale))}

    @torch.no_grad()
    def step(self, lr: float) -> None:
        self.updates += 1
        train = self.train
        self.library.optimizer_update_8bit_blockwise(
            "adam",
            self.gradient,
            self.weights,
            *self.moments,
            train.beta1,
            train.beta2,
            0.0,
            0.0,
            train.epsilon,
            int(self.updates.item()),
            lr,
            *self.codes,
            *self.scales,
            train.weight_decay,
        )
