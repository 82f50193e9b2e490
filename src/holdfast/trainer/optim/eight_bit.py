"""AdamW whose moments are 8 bits a number, by bitsandbytes: 256 numbers share a scale."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from holdfast.config.train import Train
from holdfast.trainer.model.frozen.bitsandbytes_package import bitsandbytes
from holdfast.trainer.model.on_card import on_card
from holdfast.trainer.optim.optimizer import Elementwise

_BLOCK = 256  # of which stretches are multiples
_ON_A_CPU = 1 << 18  # of which bitsandbytes makes five copies in fp32 there: 5 MiB


class AdamW8Bit(Elementwise):
    """Dettmers et al. 2021 (arXiv 2110.02861). paged: the moments in memory that the driver moves to the host when the device is short."""

    def __init__(self, parameters: Mapping[str, Tensor], train: Train, rates: Mapping[str, float] | None = None) -> None:
        self.library = bitsandbytes(f"train.optimizer {train.optimizer}").functional
        if not on_card(next(iter(parameters.values())).device):
            self.STRETCH = _ON_A_CPU
        super().__init__(parameters, train, rates)
        scales, device = -(-self.weights.numel() // _BLOCK), self.weights.device
        self.scales = [torch.zeros(scales, device=device) for _ in self.moments]
        self.codes = [self.library.create_dynamic_map(signed=signed).to(device) for signed in (True, False)]

    def made(self, size: int, device: torch.device) -> list[Tensor]:
        paged = self.train.optimizer == "paged" and device.type == "cuda"
        return [
            self.library.get_paged(size, dtype=torch.uint8, device=device) if paged else torch.zeros(size, dtype=torch.uint8, device=device)
            for _ in range(2)
        ]

    def blocks(self) -> dict[str, Tensor]:
        return {}

    def others(self) -> dict[str, Tensor]:
        pairs = zip(("exp_avg", "exp_avg_sq"), self.moments, self.scales, strict=True)
        return {f"{kind}_{what}/all": held for kind, moment, scale in pairs for what, held in (("bytes", moment), ("scales", scale))}

    def parts_of_moments(self, start: int, end: int) -> list[Tensor]:
        return super().parts_of_moments(start, end) + [scales[start // _BLOCK : -(-end // _BLOCK)] for scales in self.scales]

    def move(self, weights: Tensor, gradient: Tensor, moments: list[Tensor], lr: float) -> None:
        mean, square, *scales = moments
        train = self.train
        self.library.optimizer_update_8bit_blockwise(
            "adam",
            gradient,
            weights,
            mean,
            square,
            train.beta1,
            train.beta2,
            0.0,
            0.0,
            train.epsilon,
            int(self.updates.item()),
            lr,
            *self.codes,
            *scales,
            train.weight_decay,
        )
