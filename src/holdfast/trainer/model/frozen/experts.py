"""Experts in stacks, held in 4 or 8 bits: those of a layer are widened for each product, forward and backward, and let go after it.

The class of such experts is transformers' own, and so is its pass, by grouped products over tokens in the order of their experts; what
multiplies in it is given the held stack. Nothing wide is kept for backward.
"""

from __future__ import annotations

from collections.abc import Iterator
from inspect import signature
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from holdfast.trainer.common.libraries import module_if_there
from holdfast.trainer.common.refuse import Refusal
from holdfast.trainer.model.frozen.halves import widened

_GROUPED = "grouped_mm"  # transformers' name of this pass
_GIVEN = ("input", "weight", "offs", "bias", "is_transposed")  # what its product takes


def stacks_of(model: nn.Module) -> Iterator[tuple[str, Any, str]]:
    """Yield (name, module, name within it) of the stacks of experts that can be held so: [experts, out, in] or [experts, in, out]."""
    for name, module in model.named_modules():
        if hasattr(module, "is_transposed") and hasattr(module, "_apply_gate"):
            for own, weight in module.named_parameters(recurse=False):
                if len(getattr(weight, "of_shape", weight.shape)) == 3:
                    yield f"{name}.{own}", module, own


def multiply_held(modules: list[Any]) -> None:
    """Let transformers' pass through these experts, and through no others, multiply with stacks held in fewer bits.

    Raises Refusal where its product takes other things than we know.
    """
    moe: Any = module_if_there("transformers.integrations.moe")
    plain = getattr(moe, "_grouped_linear", None)
    if plain is None or (plain is not _grouped and tuple(signature(plain).parameters) != _GIVEN):
        text = f"experts in stacks are not held in 4 or 8 bits with transformers {transformers.__version__}: its grouped product is another"
        raise Refusal("package_conflict", text, "leave train.frozen out; then start afresh with --run DIR")
    for module in modules:
        module.config._experts_implementation = _GROUPED
    if plain is not _grouped:
        vars(moe).update(_grouped_linear=_grouped, _plain_grouped_linear=plain)


def _grouped(input: Tensor, weight: Any, offs: Tensor, bias: Tensor | None = None, is_transposed: bool = False) -> Tensor:
    """Multiply tokens [tokens, in], sorted by expert, with the stack of their experts. offs: where each expert's tokens end."""
    moe: Any = module_if_there("transformers.integrations.moe")
    if weight.is_floating_point():
        plain: Tensor = moe._plain_grouped_linear(input, weight, offs, bias, is_transposed)
        return plain
    out: Tensor = _HeldExperts.apply(input.to(weight.computed), weight, offs, is_transposed)  # type: ignore[no-untyped-call]
    return out if bias is None else out + bias


class _HeldExperts(torch.autograd.Function):
    """y = x W of each token's expert, with the stack widened twice rather than kept wide for backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, held: Any, offs: Tensor, transposed: bool) -> Tensor:
        ctx.held, ctx.transposed = held, transposed  # not saved: a weight in 4 bits is more than its bytes
        ctx.save_for_backward(offs)
        return _product(x, held, offs, transposed)

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> Any:
        return _product(outer, ctx.held, ctx.saved_tensors[0], not ctx.transposed), None, None, None


def _product(x: Tensor, held: Any, offs: Tensor, transposed: bool) -> Tensor:
    moe: Any = module_if_there("transformers.integrations.moe")
    stack = widened(held, x.dtype)
    out: Tensor = moe._grouped_mm(x, stack if transposed else stack.transpose(-2, -1), offs=offs)
    return out
