"""AdamW whose moments are 8 bits a number, by bitsandbytes: 256 numbers share a scale."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

import torch
from torch import Tensor

from holdfast.config.train import Train
from holdfast.trainer.common.bitsandbytes_package import bitsandbytes
from holdfast.trainer.common.on_card import on_card
from holdfast.trainer.common.refuse import Refusal
from holdfast.trainer.optim.optimizer import Elementwise

_BLOCK = 256  # of which stretches are multiples
_BESIDE_KERNELS = 89  # CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS
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
        if not (self.train.optimizer == "paged" and device.type == "cuda"):
            return [torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2)]
        refuse_where_kernels_lock_the_host_out(device)
        return [self.library.get_paged(size, dtype=torch.uint8, device=device).zero_() for _ in range(2)]

    def blocks(self) -> dict[str, Tensor]:
        return {}

    def others(self) -> dict[str, Tensor]:
        pairs = zip(("exp_avg", "exp_avg_sq"), self.moments, self.scales, strict=True)
        return {f"{kind}_{what}/all": held for kind, moment, scale in pairs for what, held in (("bytes", moment), ("scales", scale))}

    def parts_of_moments(self, start: int, end: int) -> list[Tensor]:
        parts = super().parts_of_moments(start, end)
        for part, whole in zip(parts, self.moments, strict=True):
            if getattr(whole, "is_paged", False):  # a slice is another object, and bitsandbytes takes memory of the host for this alone
                vars(part).update(is_paged=True, page_deviceid=vars(whole)["page_deviceid"])
        return parts + [scales[start // _BLOCK : -(-end // _BLOCK)] for scales in self.scales]

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


def refuse_where_kernels_lock_the_host_out(device: torch.device) -> None:
    """Raise Refusal where the host may not read paged memory while kernels run (WSL): a snapshot does. What no driver tells is allowed."""
    try:
        found, driver = ctypes.c_int(1), ctypes.CDLL("libcuda.so.1")
        if driver.cuDeviceGetAttribute(ctypes.byref(found), _BESIDE_KERNELS, device.index or 0) != 0 or found.value:
            return
    except (OSError, AttributeError):
        return
    text = f"{device}: this driver lets no process read paged memory while its kernels run, as a snapshot does; so it is under WSL"
    raise Refusal("launch_misconfigured", text, "set train.optimizer: adamw8bit; then start afresh with --run DIR")
