"""Keep frozen matrices in the 16 bits their file has and widen them one product at a time. Changes no result: widening is exact."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def keep_narrow(model: nn.Module, stored: torch.dtype) -> int:
    """Bring the weights of linear and embedding layers, just loaded from `stored`, back to that width; bytes saved.

    Only of exactly these two classes: a subclass may compute in its weights' own type.
    """
    saved = 0
    for module in model.modules():
        if type(module) not in (nn.Linear, nn.Embedding):
            continue
        weight: Any = module.weight
        module.forward = partial(_linear if type(module) is nn.Linear else _embed, module, weight.dtype)
        if weight.dtype.itemsize > stored.itemsize:  # a tied weight is met twice
            saved += weight.numel() * (weight.dtype.itemsize - stored.itemsize)
            weight.requires_grad_(False)
            weight.data = weight.data.to(stored)
    return saved


def _linear(module: Any, _: torch.dtype, x: Tensor) -> Tensor:
    out: Tensor = _NarrowLinear.apply(x, module.weight, module.bias)  # type: ignore[no-untyped-call]
    return out


def _embed(module: Any, arithmetic: torch.dtype, ids: Tensor) -> Tensor:
    return F.embedding(ids, module.weight, module.padding_idx).to(arithmetic)


class _NarrowLinear(torch.autograd.Function):
    """y = x W' + b with W widened twice rather than kept wide for backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(w)
        return F.linear(x, w.to(x.dtype), bias)

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> Any:
        (w,) = ctx.saved_tensors
        return outer @ w.to(outer.dtype), None, None
