"""Attention over packed sequences: each sample attends to itself alone, so nothing is padded and no mask of [tokens x tokens] exists.

Plugged in through transformers' attention interface. What an architecture asks for beyond this raises, and the proof at the run's start
(proof.py) then chooses another layout; nothing is approximated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from itertools import count
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from holdfast.trainer.common.on_card import on_card
from holdfast.trainer.model.layers.dropout import StepContext

_NUMBERS = count(1)
_UNSUPPORTED = ("position_bias", "s_aux", "cache")  # biases, sinks, paged caches


def packed_attention(kind: str, context: StepContext, kernel: Kernel | None = None) -> str:
    """Register attention within the sequences that `context` names; return its name for transformers. kind: eager or sdpa.

    kernel: in 16 bits, what attends in all sequences at once, as far as it knows what the architecture asks for.
    """
    name = f"holdfast_{next(_NUMBERS)}"  # the interface's names are global, a context belongs to one model
    AttentionInterface.register(name, _PackedAttention(_KINDS[kind], context, kernel))
    return name


@dataclass(frozen=True)
class Kernel:
    """FlashAttention over sequences of different lengths, from `source`.

    attend(q, k, v, ends, longest, scale, window, softcap): [tokens, heads, size] of all; `ends` as in a Batch; `window` of tokens that one
    sees, itself among them, or None. capped: it knows soft-capping.
    """

    source: str
    attend: Callable[[Tensor, Tensor, Tensor, Tensor, int, float, int | None, float | None], Tensor]
    capped: bool = False


def best_kernel() -> Kernel | None:
    """Find the best variable-length kernel: of an installed flash-attn, else torch's public one, else its private one; None for none."""
    return _of_package() or _of_torch() or _of_torch_within()


class _PackedAttention:
    """What transformers calls in place of its own attention, for queries [1, heads, tokens, size] and keys, values of as many tokens."""

    def __init__(self, attend: _Attend, context: StepContext, kernel: Kernel | None) -> None:
        self.attend = attend
        self.context = context
        self.kernel = kernel

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
        self.context.windows += window is not None
        kind = _arithmetic(value)
        query, key, value = query.to(kind), key.to(kind), value.to(kind)
        if self.kernel and kind != torch.float32 and (softcap is None or self.kernel.capped):
            ends = self.context.ends
            assert ends is not None
            q, k, v = (tensor[0].transpose(0, 1).contiguous() for tensor in (query, key, value))
            return self.kernel.attend(q, k, v, ends, max(lengths), scale, window, softcap).unsqueeze(0), None
        parts = zip(*(torch.split(tensor, list(lengths), dim=2) for tensor in (query, key, value)), strict=True)
        with torch.autocast(query.device.type, enabled=False):  # mixed precision attends in the type chosen here
            attended = [self.attend(q, k, v, scale, window, softcap) for q, k, v in parts]
        return torch.cat([part.transpose(1, 2) for part in attended], dim=1), None


def _arithmetic(value: Tensor) -> torch.dtype:
    """Return the dtype to attend in: on a CPU fp32, because its kernel for bf16 is compiled anew for each length."""
    return value.dtype if on_card(value) else torch.float32


def _of_package() -> Kernel | None:
    """Return the kernel of the package flash-attn, None where it is missing or older than 2.6, which cannot cap scores.

    Source: https://github.com/Dao-AILab/flash-attention
    """
    try:
        from flash_attn import flash_attn_varlen_func  # type: ignore[import-not-found]
    except (ImportError, OSError):  # not there, or built for another torch
        return None
    if not {"window_size", "softcap", "deterministic"} <= set(signature(flash_attn_varlen_func).parameters):
        return None

    def attend(
        q: Tensor, k: Tensor, v: Tensor, ends: Tensor, longest: int, scale: float, window: int | None, softcap: float | None
    ) -> Tensor:
        out: Tensor = flash_attn_varlen_func(
            *(q, k, v, ends, ends, longest, longest),
            softmax_scale=scale,
            causal=True,
            window_size=(-1 if window is None else window - 1, -1 if window is None else 0),
            softcap=softcap or 0.0,
            deterministic=torch.are_deterministic_algorithms_enabled(),
        )
        return out

    return Kernel("flash-attn", attend, capped=True)


def _of_torch() -> Kernel | None:
    """Return torch's public kernel; None before torch 2.11, where it takes neither windows nor grouped heads."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    if not {"window_size", "enable_gqa", "scale"} <= set(signature(varlen_attn).parameters):
        return None

    def attend(
        q: Tensor, k: Tensor, v: Tensor, ends: Tensor, longest: int, scale: float, window: int | None, _softcap: float | None
    ) -> Tensor:
        reach = (-1 if window is None else window - 1, 0)
        grouped = q.shape[1] != k.shape[1]
        out: Any = varlen_attn(q, k, v, ends, ends, longest, longest, scale=scale, window_size=reach, enable_gqa=grouped)
        attended: Tensor = out
        return attended

    return Kernel("torch", attend)


def _of_torch_within() -> Kernel | None:
    """Return the private operation under torch's kernel, as torch 2.5 to 2.10 have it without a public name; None elsewhere.

    A private operation: called only where its arguments are those known here, and where autograd knows it.
    """
    operation = getattr(torch.ops.aten, "_flash_attention_forward", None)
    if operation is None or not torch._C._dispatch_has_kernel_for_dispatch_key("aten::_flash_attention_forward", "Autograd"):
        return None
    names = [argument.name for argument in operation.default._schema.arguments]
    if names[:10] != _WITHIN or not {"scale", "window_size_left", "window_size_right"} <= set(names[10:]):
        return None

    def attend(
        q: Tensor, k: Tensor, v: Tensor, ends: Tensor, longest: int, scale: float, window: int | None, _softcap: float | None
    ) -> Tensor:
        reach = {} if window is None else {"window_size_left": window - 1, "window_size_right": 0}
        positions = (q, k, v, ends, ends, longest, longest)
        out: Tensor = operation(*positions, 0.0, window is None, False, scale=scale, **reach)[0]
        return out

    return Kernel("torch's private one", attend)


_WITHIN = ["query", "key", "value", "cum_seq_q", "cum_seq_k", "max_q", "max_k", "dropout_p", "is_causal", "return_debug_mask"]


def _sdpa(q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None, softcap: float | None) -> Tensor:
    if softcap is not None:
        return _eager(q, k, v, scale, window, softcap)
    k, v = _repeat_heads(k, q.shape[1]), _repeat_heads(v, q.shape[1])
    if window is None or window >= q.shape[2]:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=_visible(q, window), scale=scale)


def _eager(q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None, softcap: float | None) -> Tensor:
    """Attend with plain operations in the order of transformers' eager attention: the reference."""
    scores = torch.matmul(q, _repeat_heads(k, q.shape[1]).transpose(2, 3)) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.masked_fill(~_visible(q, window), torch.finfo(scores.dtype).min)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
    return torch.matmul(weights, _repeat_heads(v, q.shape[1]))


def _repeat_heads(tensor: Tensor, heads: int) -> Tensor:
    return tensor if tensor.shape[1] == heads else tensor.repeat_interleave(heads // tensor.shape[1], dim=1)


def _visible(q: Tensor, window: int | None) -> Tensor:
    """Return the mask [tokens, tokens]: True where a token (row) sees another (column), itself or one of the `window` before it."""
    place = torch.arange(q.shape[2], device=q.device)
    back = place[:, None] - place[None, :]
    return back >= 0 if window is None else (back >= 0) & (back < window)


_Attend = Callable[[Tensor, Tensor, Tensor, float, int | None, float | None], Tensor]
_KINDS: dict[str, _Attend] = {"eager": _eager, "sdpa": _sdpa}
