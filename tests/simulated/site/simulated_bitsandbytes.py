"""bitsandbytes with the simulated card: its CPU kernels compute on the card's bytes, which are main memory.

They take of the card what the CUDA kernels take, their results. Memory that pages between host and card is plain main memory.

Imported by simulated_card, before that says that there is a card, so that bitsandbytes looks for no driver.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import bitsandbytes  # noqa: F401
import torch
from bitsandbytes import functional
from bitsandbytes._ops import register_kernel
from torch import Tensor

_OPS = torch.ops.bitsandbytes


def _on_host(tensor: Tensor) -> Tensor:
    """The bytes of a tensor of the card as a tensor of the host: [as many], contiguous."""
    size = tensor.numel() * tensor.dtype.itemsize
    held = tensor if tensor.is_contiguous() else tensor.contiguous()
    view = torch.frombuffer((ctypes.c_char * size).from_address(held.data_ptr()), dtype=tensor.dtype).view(tensor.shape)
    view.keeps = held  # type: ignore[attr-defined]
    return view


def _on_card(value: Tensor, device: torch.device) -> Tensor:
    made = torch.empty(value.shape, dtype=value.dtype, device=device)
    _on_host(made).copy_(value)
    return made


@register_kernel("bitsandbytes::quantize_4bit", "cuda")
def _(a: Tensor, blocksize: int, quant_type: str, quant_storage: torch.dtype) -> tuple[Tensor, Tensor]:
    packed, scales = _OPS.quantize_4bit(_on_host(a), blocksize, quant_type, quant_storage)
    return _on_card(packed, a.device), _on_card(scales, a.device)


@register_kernel("bitsandbytes::dequantize_4bit", "cuda")
def _(a: Tensor, absmax: Tensor, blocksize: int, quant_type: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    wide = _OPS.dequantize_4bit(_on_host(a), _on_host(absmax), blocksize, quant_type, shape, dtype)
    return _on_card(wide, a.device)


@register_kernel("bitsandbytes::quantize_blockwise", "cuda")
def _(a: Tensor, code: Tensor, blocksize: int) -> tuple[Tensor, Tensor]:
    packed, scales = _OPS.quantize_blockwise(_on_host(a), _on_host(code), blocksize)
    return _on_card(packed, a.device), _on_card(scales, a.device)


@register_kernel("bitsandbytes::dequantize_blockwise", "cuda")
def _(a: Tensor, absmax: Tensor, code: Tensor, blocksize: int, dtype: torch.dtype) -> Tensor:
    wide = _OPS.dequantize_blockwise(_on_host(a), _on_host(absmax), _on_host(code), blocksize, dtype)
    return _on_card(wide, a.device)


@register_kernel("bitsandbytes::optimizer_update_8bit_blockwise", "cuda")
def _(name: str, gradient: Tensor, weights: Tensor, *given: Any) -> None:
    tensors = [_on_host(one) if isinstance(one, Tensor) else one for one in (gradient, weights, *given)]
    _OPS.optimizer_update_8bit_blockwise(name, *tensors)


def _paged(*shape: int, dtype: torch.dtype = torch.float32, device: Any = None) -> Tensor:
    """As functional.get_paged: a tensor that says it lies on the host, whose bytes are anything but zero."""
    made = torch.full((torch.Size(shape).numel() * dtype.itemsize,), 0x7F, dtype=torch.uint8).view(dtype).view(shape)
    made.is_paged, made.page_deviceid = True, 0  # type: ignore[attr-defined]
    return made


functional.get_paged = _paged
functional.prefetch_tensor = lambda *_given, **_named: None
