"""Attention over packed sequences: each sample attends to itself alone, so nothing is padded and no mask of [tokens x tokens] exists.

Plugged in through transformers' attention interface. What an architecture asks for beyond this raises, and the proof at the run's start
(proof.py) then chooses another layout; nothing is approximated.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from holdfast.trainer.dropout import StepContext

_NUMBERS = count(1)
_UNSUPPORTED = ("position_bias", "s_aux", "cache")  # biases, sinks, paged caches


def packed_attention(kind: str, context: StepContext, varlen: bool = False) -> str:
    """The name under which a model attends within the sequences `context` names. kind: eager (the reference) or sdpa.

    varlen: with sdpa in 16 bits, all sequences in one kernel where this torch has one.
    """
    name = f"holdfast_{next(_NUMBERS)}"  # the interface's names are global, a context belongs to one model
    AttentionInterface.register(name, _PackedAttention(_KINDS[kind], context, _varlen() if varlen and kind == "sdpa" else None))
    return name


class _PackedAttention:
    """What transformers calls in place of its own attention, for queries [1, heads, tokens, size] and keys, values of as many tokens."""

    def __init__(self, attend: _Attend, context: StepContext, varlen: Callable[..., Tensor] | None) -> None:
        self.attend = attend
        self.context = context
        self.varlen = varlen

    def __call__(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **asked: Any
    ) -> tuple[Tensor, None]:
        lengths = self.context.lengths
        if lengths is None or query.shape[0] != 1 or query.shape[2] != sum(lengths) or key.shape[2] != query.shape[2]:
            raise ValueError(f"packed attention got queries {tuple(query.shape)}, keys {tuple(key.shape)} for sequences of {lengths}")
        refused = [name for name in _UNSUPPORTED if asked.get(name) is not None]
        if refused or asked.get("dropout") or not (asked.get("is_causal") is not False and getattr(module, "is_causal", True)):
            raise NotImplementedError(f"packed attention has no {', '.join(refused) or 'dropout and no view ahead'}")
        scale = asked.get("scaling")
        scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
        window, softcap = asked.get("sliding_window"), asked.get("softcap")
        kind = _arithmetic(value)
        query, key, value = query.to(kind), key.to(kind), value.to(kind)
        if self.varlen and kind != torch.float32 and softcap is None:
            return self._all_at_once(query, key, value, lengths, scale, window), None
        parts = zip(*(torch.split(tensor, list(lengths), dim=2) for tensor in (query, key, value)), strict=True)
        with torch.autocast(query.device.type, enabled=False):  # mixed precision attends in the type chosen here
            attended = [self.attend(q, k, v, scale, window, softcap) for q, k, v in parts]
        return torch.cat([part.transpose(1, 2) for part in attended], dim=1), None

    def _all_at_once(self, query: Tensor, key: Tensor, value: Tensor, lengths: tuple[int, ...], scale: float, window: int | None) -> Tensor:
        """FlashAttention over sequences of different lengths, as torch brings it along for GPUs."""
        assert self.varlen is not None
        ends = torch.tensor((0, *lengths), device=query.device).cumsum(0).to(torch.int32)
        q, k, v = (tensor[0].transpose(0, 1).contiguous() for tensor in (query, key, value))
        reach = (-1 if window is None else window - 1, 0)
        grouped = query.shape[1] != key.shape[1]
        longest = max(lengths)
        out = self.varlen(q, k, v, ends, ends, longest, longest, scale=scale, window_size=reach, enable_gqa=grouped)
        return out.unsqueeze(0)


def _arithmetic(value: Tensor) -> torch.dtype:
    """What to attend in: on a CPU fp32, because its kernel for bf16 is compiled anew for each length."""
    return value.dtype if value.is_cuda else torch.float32


def _varlen() -> Callable[..., Tensor] | None:
    """torch's own variable-length attention; it came with torch 2.10 and has taken windows and grouped heads since 2.11."""
    try:
        from inspect import signature

        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return (
        cast(Callable[..., Tensor], varlen_attn)
        if {"window_size", "enable_gqa", "scale"} <= set(signature(varlen_attn).parameters)
        else None
    )


def _sdpa(q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None, softcap: float | None) -> Tensor:
    if softcap is not None:
        return _eager(q, k, v, scale, window, softcap)
    k, v = _repeated(k, q.shape[1]), _repeated(v, q.shape[1])
    if window is None or window >= q.shape[2]:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=_visible(q, window), scale=scale)


def _eager(q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None, softcap: float | None) -> Tensor:
    """The reference, in the order of operations of transformers' eager attention."""
    scores = torch.matmul(q, _repeated(k, q.shape[1]).transpose(2, 3)) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.masked_fill(~_visible(q, window), torch.finfo(scores.dtype).min)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
    return torch.matmul(weights, _repeated(v, q.shape[1]))


def _repeated(tensor: Tensor, heads: int) -> Tensor:
    return tensor if tensor.shape[1] == heads else tensor.repeat_interleave(heads // tensor.shape[1], dim=1)


def _visible(q: Tensor, window: int | None) -> Tensor:
    """[tokens, tokens]: True where a token (row) sees another (column): itself and what came before, at most `window` of them."""
    place = torch.arange(q.shape[2], device=q.device)
    back = place[:, None] - place[None, :]
    return back >= 0 if window is None else (back >= 0) & (back < window)


_Attend = Callable[[Tensor, Tensor, Tensor, float, int | None, float | None], Tensor]
_KINDS: dict[str, _Attend] = {"eager": _eager, "sdpa": _sdpa}
