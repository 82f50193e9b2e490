"""A reference of attention over packed sequences, as torch documents its kernel: [tokens, heads, size], bounds, a window, grouped heads."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CALLS: list[tuple[int, ...]] = []


def seen(size: int, left: int, right: int) -> Tensor:
    place = torch.arange(size)
    ahead = place[None, :] - place[:, None]
    return (ahead <= right if right >= 0 else ahead < size) & (ahead >= -left if left >= 0 else ahead > -size)


def of_torch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    ends_q: Tensor,
    ends_k: Tensor,
    longest_q: int,
    longest_k: int,
    *,
    scale: float,
    window_size: Any,
    enable_gqa: bool,
    softcap: float = 0.0,
) -> Tensor:
    assert q.dtype == k.dtype == v.dtype == torch.bfloat16 and ends_q.dtype == torch.int32
    assert enable_gqa == (q.shape[1] != k.shape[1]) and all(tensor.is_contiguous() for tensor in (q, k, v))
    sizes = torch.diff(ends_q).tolist()
    assert longest_q == longest_k == max(sizes) and torch.equal(ends_q, ends_k)
    CALLS.append(tuple(sizes))
    out = []
    for parts in zip(*(torch.split(tensor.float(), sizes) for tensor in (q, k, v)), strict=True):
        one_q, one_k, one_v = (part.transpose(0, 1) for part in parts)
        if enable_gqa:
            one_k, one_v = (part.repeat_interleave(len(one_q) // len(part), 0) for part in (one_k, one_v))
        scores = one_q @ one_k.transpose(1, 2) * scale
        if softcap:
            scores = torch.tanh(scores / softcap) * softcap
        scores = scores.masked_fill(~seen(one_q.shape[1], *window_size), float("-inf"))
        out.append((scores.softmax(-1) @ one_v).transpose(0, 1))
    return torch.cat(out).to(q.dtype)
