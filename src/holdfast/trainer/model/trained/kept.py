"""PiSSA and OLoRA without touching the base model: a half of the adapter keeps what it began with, and takes it off again.

Both begin an adapter with a part of the weight it sits on and want that part gone from the weight: W - s B0 A0 + s B A. Here W stays as
it is, and the adapter has twice the rank: [B, -B0] [A; A0]. Only the first half is trained. So the base may be held in 16 or 4 bits, and
what is saved is a plain LoRA adapter of the model that everybody has. (Meng et al. 2024, arXiv 2404.02948;
Buyukakyuz 2024, arXiv 2406.01775)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from peft.tuners.lora.layer import LoraLayer
from peft.utils.integrations import dequantize_module_weight
from torch import Tensor, nn

from holdfast.trainer.common.refuse import Refusal
from holdfast.trainer.model.frozen.halves import widened
from holdfast.trainer.protocol.step_hooks import StepHooks

_SWEEPS, _BEYOND = 16, 8  # of the randomised decomposition: powers of the matrix, columns beyond the rank


class KeptStart(StepHooks):
    """Leaves the kept halves without gradient; an optimizer whose update of such an element is 0 leaves them as they are."""

    def __init__(self, halves: list[Tensor], rates: Mapping[str, float]) -> None:
        super().__init__(rates)
        self.halves = halves

    def gradients(self) -> None:
        for parameter, side in self.halves:
            assert parameter.grad is not None
            kept = parameter.grad.tensor_split(2, dim=side)[1]
            kept.zero_()


@torch.no_grad()
def start_exactly(model: nn.Module, init: str, seed: int) -> None:
    """Begin on the base in fp32, whatever type it is held in: init orthogonal as PEFT has it, and DoRA's magnitudes.

    PEFT takes the weight's own type for both: an error with 4 bits, and with 16 each row is scaled by its rounding from the first step on.
    """
    torch.manual_seed(seed)
    for layer in (one for one in model.modules() if isinstance(one, LoraLayer) and isinstance(one.lora_A, nn.ModuleDict)):  # not AdaLoRA's
        pairs = {name: (a.weight, layer.lora_B[name].weight) for name, a in layer.lora_A.items()}
        pairs |= {name: (a, layer.lora_embedding_B[name]) for name, a in layer.lora_embedding_A.items()}
        for name, (a, b) in pairs.items():
            if init == "orthogonal" and name in layer.lora_A and a.dim() == 2:
                basis = torch.linalg.qr(torch.randn(len(a), len(a)))[0]
                a.copy_((torch.randn(a.shape[1], len(a) // 2) @ basis[0::2]).t() / 10)
                b.copy_(torch.randn(len(a) // 2, len(b)).t() @ basis[1::2] / 10)
            if layer.use_dora.get(name) and a.dim() == 2:
                dora = layer.lora_magnitude_vector[name]
                weight = dequantize_module_weight(layer.get_base_layer()).to(b.device, torch.float32)
                dora.weight.copy_(dora.get_weight_norm(weight, b @ a, layer.scaling[name]))


@torch.no_grad()
def start_from_weights(model: nn.Module, init: str, rank: int, seed: int) -> Any:
    """Give each LoRA layer both halves; (parameter, dimension along which its second half is kept) of each matrix.

    Raises Refusal where a weight has fewer directions than the rank.
    """
    halves = []
    layers = [one for one in model.modules() if isinstance(one, LoraLayer) and "default" in one.lora_A]
    matrices = [(layer, layer.lora_A["default"].weight, layer.lora_B["default"].weight) for layer in layers]
    _refuse_fewer_directions(((len(b), a.shape[1]) for _, a, b in matrices), init, rank)
    for layer, a, b in matrices:
        weight = widened(layer.get_base_layer().weight, torch.float32)
        weight = weight.t() if getattr(layer, "fan_in_fan_out", False) else weight  # as GPT-2 keeps it
        left, right = _parts(weight, init, rank, seed)
        scale = layer.scaling["default"]
        if init == "pissa":
            left, right = left / scale**0.5, right / scale**0.5
        a.copy_(torch.cat([right, right]))
        b.copy_(torch.cat([left, -left], dim=1))
        halves += [(a, 0), (b, 1)]
    return halves


def _refuse_fewer_directions(shapes: Iterable[tuple[int, int]], init: str, rank: int) -> None:
    """Raise Refusal where a weight of one of these shapes has fewer directions than the rank."""
    narrow = min(shapes, key=min, default=(rank, rank))
    if (most := min(narrow)) < rank:
        text = f"adapter.init {init} begins with {rank} directions of each weight, and one of {list(narrow)} has {most}"
        raise Refusal("launch_misconfigured", text, f"set adapter.r: {most}, or less; then start afresh with --run DIR")


def _parts(weight: Tensor, init: str, rank: int, seed: int) -> tuple[Tensor, Tensor]:
    """Factor a weight into [out, rank] and [rank, in]: the largest singular directions, each with the root of its value.

    init olora: the first columns of an orthogonal basis instead.
    """
    if init == "olora":
        q, r = torch.linalg.qr(weight)
        return q[:, :rank].contiguous(), r[:rank].contiguous()
    torch.manual_seed(seed)
    u, s, v = torch.svd_lowrank(weight, q=min(rank + _BEYOND, *weight.shape), niter=_SWEEPS)
    root = s[:rank].sqrt()
    return u[:, :rank] * root, (v[:, :rank] * root).t()
