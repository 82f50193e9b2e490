"""Keep matrices in the 16 bits their file has and widen them one product at a time. Changes no result: widening is exact.

Those that are trained in bf16 have their gradients rounded to it once a micro-batch.
"""

from __future__ import annotations

from copy import copy
from functools import partial
from inspect import signature
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.trainer.common.bitsandbytes_package import bitsandbytes
from holdfast.trainer.common.on_card import on_card


def keep_narrow(model: nn.Module, stored: torch.dtype, arithmetic: torch.dtype = torch.float32) -> int:
    """Keep the weights of linear and embedding layers, loaded from `stored`, at that width, all else in `arithmetic`; bytes saved.

    Only of exactly these two classes: a subclass may compute in its weights' own type. A weight that such a one shares stays wide, but
    where it is an embedding of token ids, which scales them: that one is given the rows it looks up, widened.
    """
    saved, narrow = 0, set()
    scaled = [module for module in model.modules() if _is_scaled_embedding(module)]
    others = [module for module in model.modules() if type(module) not in (nn.Linear, nn.Embedding) and module not in scaled]
    wide = {id(weight) for module in others for weight in module.parameters(recurse=False)}
    for module in model.modules():
        if type(module) not in (nn.Linear, nn.Embedding) and module not in scaled:
            continue
        weight: Any = module.weight
        if id(weight) in wide or not weight.is_floating_point():  # held in fewer bits
            continue
        forward = {nn.Linear: _linear, nn.Embedding: _embed}.get(type(module), _embed_scaled)
        module.forward = partial(forward, module, arithmetic)
        narrow.add(id(weight))
        if weight.dtype.itemsize > stored.itemsize:  # a tied weight is met twice
            saved += weight.numel() * (weight.dtype.itemsize - stored.itemsize)
            weight.requires_grad_(False)
            weight.data = weight.data.to(stored)
    for parameter in model.parameters():
        if id(parameter) not in narrow and parameter.is_floating_point():
            parameter.data = parameter.data.to(arithmetic)
    return saved


def widen_rest(model: nn.Module) -> None:
    """Bring what is not held in fewer bits to fp32."""
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.float()


def narrow_trained(model: nn.Module, mixed: bool) -> None:
    """Give trained weights bf16, with products, sums and gradients as exact as frozen ones of 16 bits have.

    mixed: products are in 16 bits, which take such matrices as they are; what adds and scales takes them widened.
    """
    for module in model.modules():
        own = [parameter for parameter in module.parameters(recurse=False) if parameter.requires_grad]
        for parameter in own:
            parameter.data = parameter.data.to(torch.bfloat16)
        if not own:
            continue
        forward: Any = {nn.Linear: _linear, nn.Embedding: _embed}.get(type(module), _embed_scaled if _is_scaled_embedding(module) else None)
        if mixed and type(module) is nn.Linear:
            module.__dict__.pop("forward", None)
        elif forward is not None:
            module.forward = partial(forward, module, torch.float32)
        elif not mixed or all(parameter.ndim == 1 for parameter in own):
            module.forward = partial(_with_wide, module, torch.float32)


def widened(weight: Any, dtype: torch.dtype) -> Tensor:
    """Return a frozen weight in `dtype`, as matmuls take it, whatever format it is stored in."""
    if (state := getattr(weight, "quant_state", None)) is not None:
        own = copy(state)  # another thread may widen the same weight to another type
        own.dtype = dtype  # the kernel rounds to it once, as a copy of its fp32 would be
        wide: Tensor = bitsandbytes("a weight in 4 bits").functional.dequantize_4bit(weight.data, own)
        return wide.view(getattr(weight, "of_shape", wide.shape))
    if (scales := getattr(weight, "SCB", None)) is not None:
        wide = weight.data.float().mul_((scales / 127.0)[:, None]).to(dtype).view(getattr(weight, "of_shape", weight.shape))
    else:
        wide = weight.detach().to(dtype)
    return wide


def held_linear(module: Any, x: Tensor) -> Tensor:
    """Compute the output of a linear layer whose weight is widened for each product."""
    out: Tensor = _NarrowLinear.apply(x, module.weight, module.bias)  # type: ignore[no-untyped-call]
    return out


def _is_scaled_embedding(module: nn.Module) -> bool:
    """Return whether a module is a subclass of nn.Embedding whose forward pass takes token ids alone, as Gemma's does."""
    if not isinstance(module, nn.Embedding) or type(module) is nn.Embedding:
        return False
    return list(signature(type(module).forward).parameters) == ["self", "input_ids"]


def _linear(module: Any, _: torch.dtype, x: Tensor) -> Tensor:
    return held_linear(module, x)


def _embed(module: Any, arithmetic: torch.dtype, ids: Tensor) -> Tensor:
    return _rows(ids, module.weight, module.padding_idx, arithmetic)


def _embed_scaled(module: Any, arithmetic: torch.dtype, ids: Tensor) -> Tensor:
    """Let the module's own code look into a table of nothing but the rows it asks for, in the type the model computes in.

    A copy of the module has that table: other threads look into the module's own meanwhile (`trainer/parts/side_by_side.py`).
    """
    rows, own = _rows(ids.flatten(), module.weight, module.padding_idx, arithmetic), copy(module)
    vars(own).update(_parameters={**module._parameters, "weight": rows}, padding_idx=None)
    out: Tensor = type(module).forward(own, torch.arange(len(rows), device=ids.device).view(ids.shape))
    return out


def _with_wide(module: Any, arithmetic: torch.dtype, *given: Any, **named: Any) -> Any:
    """Let the module's own code compute with its weights widened."""
    kept = dict(module._parameters)
    module._parameters.update({name: one.to(arithmetic) for name, one in kept.items() if one is not None and one.is_floating_point()})
    try:
        return type(module).forward(module, *given, **named)
    finally:
        module._parameters.update(kept)


def _rows(ids: Tensor, weight: Tensor, padding: int | None, arithmetic: torch.dtype) -> Tensor:
    if not weight.requires_grad:
        return F.embedding(ids, weight).to(arithmetic)
    out: Tensor = _NarrowRows.apply(ids, weight, padding, arithmetic)  # type: ignore[no-untyped-call]
    return out


class _NarrowLinear(torch.autograd.Function):
    """y = x W' + b with W widened twice rather than kept wide for backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        ctx.held = w  # not saved: a weight in 4 bits is more than its bytes
        ctx.save_for_backward(*([x] if ctx.needs_input_grad[1] else []))
        return F.linear(x, widened(w, x.dtype), None if bias is None else bias.to(x.dtype))

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> Any:
        dx, dw, db = ctx.needs_input_grad
        flat = outer.reshape(-1, outer.shape[-1])
        return (
            outer @ widened(ctx.held, outer.dtype) if dx else None,
            (flat.t() @ ctx.saved_tensors[0].reshape(len(flat), -1)).to(ctx.held.dtype) if dw else None,
            flat.sum(0) if db else None,  # autograd rounds it to the bias's own type
        )


class _NarrowRows(torch.autograd.Function):
    """Rows of a trained table, widened. What a token's many places add to its row is summed in fp32 and rounded once."""

    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor, padding: int | None, arithmetic: torch.dtype) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.rows, ctx.dtype, ctx.padding = len(weight), weight.dtype, -1 if padding is None else padding
        return F.embedding(ids, weight).to(arithmetic)

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> Any:
        (ids,) = ctx.saved_tensors
        given = outer.to(ctx.dtype) if on_card(outer) else outer  # a card's kernel sums 16 bits in fp32, the CPU's does not
        made = torch.ops.aten.embedding_dense_backward(given, ids, ctx.rows, ctx.padding, False)
        return None, made.to(ctx.dtype), None, None
