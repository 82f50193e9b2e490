"""Prove at the start of a run that fp16, which nobody asked for, says what fp32 says of the run's own rows. Changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from holdfast.config.settings import PartialSettings

_SAME = 3e-2  # of the logits' norm; half of what bf16 may be apart by order of additions alone


def halves_differ(model: nn.Module, logits: Callable[[], Tensor]) -> tuple[PartialSettings, str]:
    """Compare the model's logits in fp16 with fp32; return (a change to fp32, why) where they differ, else no change."""
    was = model.training
    model.eval()
    with torch.no_grad():
        narrow = logits()
        with Fp32Mode():  # type: ignore[no-untyped-call]
            wide = logits()
    model.train(was)
    gap = float((narrow - wide).norm() / wide.norm())
    if gap <= _SAME:
        return {}, ""
    told = f"differ by {gap:.1e} of their norm" if gap == gap and gap != float("inf") else "overflow"
    return {"dtype": "fp32"}, f"this card multiplies no bf16, and in fp16 this model's logits {told}: it computes in fp32"


class Fp32Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, what would be computed in 16 bits is computed in fp32, from the same weights; one of them is widened at a time."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        written = [one.alias_info is not None and one.alias_info.is_write for one in func._schema.arguments]
        given = [one if kept else tree_map(_wide, one) for one, kept in zip(args, written, strict=False)]
        named = {name: one if name == "out" else tree_map(_wide, one) for name, one in (kwargs or {}).items()}
        return func(*given, **named)


def _wide(one: Any) -> Any:
    if isinstance(one, Tensor) and one.dtype in (torch.float16, torch.bfloat16):
        return one.float()
    return torch.float32 if one in (torch.float16, torch.bfloat16) and isinstance(one, torch.dtype) else one
