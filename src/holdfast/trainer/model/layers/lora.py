"""A LoRA linear layer without avoidable copies and casts, in place of PEFT's forward pass. PEFT's modules stay what is saved;
they are put on the model (which modules, rank, start) by trained/adapters.py.

Beside the layer's input and the [tokens, r] projection nothing is kept for backward but one byte an element where dropout is on.
Frozen weights may be stored narrower than the arithmetic (frozen.py) and are widened for the one product that needs them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from peft.tuners.lora.layer import Linear as LoraLinear
from torch import Tensor, nn

from holdfast.trainer.model.frozen.halves import held_linear, widened
from holdfast.trainer.model.frozen.offloaded_layers import Near, everywhere
from holdfast.trainer.model.layers.dropout import StatelessDropout
from holdfast.trainer.model.layers.mixed import JoinedLinear, JoinedMatrix, as_rows
from holdfast.trainer.model.layers.siblings import SiblingGroup, dropouts_of, group_siblings, same_shapes


def use_lean_lora(model: nn.Module, half: torch.dtype | None = None, cut: bool = False, near: Near = everywhere) -> int:
    """Replace the forward pass of every plain LoRA linear layer; return how many. Variants (DoRA, several adapters) keep PEFT's own.

    half: the 16 bits that products are in, where they are (mixed.py). cut: the frozen weights are in pieces between products.
    near: inside, those of a module are where it computes.
    """
    plain = plain_layers(model)
    if half is None:
        for module in plain:
            module.forward = partial(_forward, module)
        return len(plain)
    comes_and_goes = near is not everywhere
    group_siblings(model, plain, partial(_alike, half=half), lambda found: _HalfGroup(found, half, cut, comes_and_goes), near)
    return len(plain)


class _HalfGroup(SiblingGroup):
    """LoRA layers with one input whose products are in 16 bits."""

    def __init__(self, layers: list[Any], half: torch.dtype, cut: bool, comes_and_goes: bool) -> None:
        super().__init__(layers)
        self.joined = JoinedMatrix(layers, half, cut, comes_and_goes)
        (self.dropout,) = dropouts_of(layers[:1])
        (self.scale,) = layers[0].scaling.values()

    def computed(self, x: Tensor, trained: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, ...]:
        """Compute the outputs of all layers, given A and B of each."""
        keep = self.dropout.mask(x) if self.dropout else None
        scale = self.scale / (1.0 if keep is None else self.dropout.share)
        a, b = zip(*trained, strict=True)
        outs: tuple[Tensor, ...] = JoinedLinear.apply(x.to(self.joined.half), self.joined, scale, keep, *a, *b)  # type: ignore[no-untyped-call]
        return outs


def _alike(layers: list[Any], half: torch.dtype) -> bool:
    """Return whether layers can be one product: the same shape of A and factor, no dropout, all in 16 bits, all with a bias or none."""
    bases = [layer.base_layer for layer in layers]
    whole = all(base.weight.dtype == half for base in bases) and len({base.bias is None for base in bases}) == 1
    return whole and same_shapes(layers) and not any(one is not None and one.p for one in dropouts_of(layers))


def plain_layers(model: nn.Module) -> list[Any]:
    """Find the LoRA layers whose forward pass can be replaced."""
    return [module for module in model.modules() if type(module) is LoraLinear and _is_plain(module)]


def _is_plain(module: Any) -> bool:
    base, names = module.base_layer, list(module.lora_A)
    return (
        type(base) is nn.Linear
        and not base.weight.requires_grad
        and len(names) == 1
        and list(module.active_adapters) == names
        and not module.lora_variant
        and not module.fan_in_fan_out
        and module.lora_B[names[0]].bias is None
    )


def _forward(module: Any, x: Tensor) -> Tensor:
    base = module.base_layer
    if module.disable_adapters or module.merged:
        return held_linear(base, x)
    (name,) = module.lora_A
    dropout = module.lora_dropout[name]
    keep = dropout.mask(x) if isinstance(dropout, StatelessDropout) else None
    scale = module.scaling[name] / (1.0 if keep is None else dropout.share)
    weights = (module.lora_A[name].weight, module.lora_B[name].weight)
    out: Tensor = _LoraLinear.apply(x, base.weight, base.bias, *weights, scale, keep)  # type: ignore[no-untyped-call]
    return out


class _LoraLinear(torch.autograd.Function):
    """y = x W' + b + s ((x keep) A') B'. Shapes: x [*, in], W [out, in], A [r, in], B [out, r], keep [*, in] bool.

    s holds PEFT's scaling and what dropout multiplies the elements by that stay.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scale: float, keep: Tensor | None) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        y = F.linear(flat, widened(w, x.dtype), None if bias is None else bias.to(x.dtype))
        h = F.linear(_apply_dropout(flat, _factors(keep, flat)), a.to(x.dtype))
        y.addmm_(h, b.to(x.dtype).t(), alpha=scale)
        ctx.save_for_backward(x, a, b, h, keep)
        ctx.held = w
        ctx.scale = scale
        return as_rows(y, x)

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> Any:
        x, a, b, h, keep = ctx.saved_tensors
        dy, flat = outer.reshape(-1, outer.shape[-1]), x.reshape(-1, x.shape[-1])
        dh = (dy @ b.to(dy.dtype)).mul_(ctx.scale)
        db = (h.t() @ dy).mul_(ctx.scale).t().to(b.dtype)  # this way round: several times faster than dy' h
        factors = _factors(keep, flat)
        da = (dh.t() @ _apply_dropout(flat, factors)).to(a.dtype)
        dx = None
        if ctx.needs_input_grad[0]:
            dx = dy @ widened(ctx.held, dy.dtype)
            if factors is None:
                dx.addmm_(dh, a.to(dy.dtype))
            else:
                dx.addcmul_(dh @ a.to(dy.dtype), factors)
            dx = dx.view(x.shape)
        return dx, None, None, da, db, None, None


def _factors(keep: Tensor | None, x: Tensor) -> Tensor | None:
    """Convert a mask to 0 or 1 in the dtype of `x`: a product with bool is several times slower."""
    return None if keep is None else keep.view(x.shape).to(x.dtype)


def _apply_dropout(x: Tensor, factors: Tensor | None) -> Tensor:
    return x if factors is None else x * factors
