"""Collectives between simulated cards, under the name that code for cards asks for: NCCL's.

Each goes through gloo on the same bytes, which are main memory. What NCCL is not asked for here is its own: streams, its watchdog, speed.

Imported by simulated_card once torch has collectives.
"""

from __future__ import annotations

import ctypes
import warnings
from typing import Any

import torch
from torch import Tensor
from torch.distributed import distributed_c10d as c10d
from torch.library import Library

_OPS = ["allreduce_", "broadcast_", "_allgather_base_", "_reduce_scatter_base_", "alltoall_base_", "send", "recv_", "allgather_", "barrier"]
_LIBRARY = Library("c10d", "IMPL")  # type: ignore[no-untyped-call]


def _on_host(value: Any) -> Any:
    """The bytes of tensors of a card as tensors of the host."""
    if isinstance(value, list):
        return [_on_host(one) for one in value]
    if not isinstance(value, Tensor) or not value.is_cuda:
        return value
    assert value.is_contiguous(), "NCCL takes no tensor with gaps"
    size = value.numel() * value.dtype.itemsize
    if not size:
        return torch.empty(value.shape, dtype=value.dtype)
    return torch.frombuffer((ctypes.c_char * size).from_address(value.data_ptr()), dtype=value.dtype).view(value.shape)


def _through_gloo(name: str) -> None:
    operation = getattr(torch.ops.c10d, name).default

    def collective(*given: Any) -> Any:
        if name == "barrier":
            return operation(torch.empty(1), *given[1:])
        found = operation(*map(_on_host, given))
        return found if not isinstance(found, tuple) else (given[0], *found[1:])

    _LIBRARY.impl(name, collective, "CUDA")  # type: ignore[no-untyped-call]


class ProcessGroupNCCL(c10d.ProcessGroupGloo):  # type: ignore[misc]
    """In place of torch's class: a group of gloo, which is never asked itself."""

    class Options(c10d.ProcessGroupGloo._Options):  # type: ignore[name-defined, misc]
        is_high_priority_stream = False

    def __init__(self, store: Any, rank: int, size: int, options: Any) -> None:
        super().__init__(store, rank, size, timeout=options._timeout)


c10d.ProcessGroupNCCL = ProcessGroupNCCL  # type: ignore[attr-defined, misc]
c10d.is_nccl_available = lambda: True
c10d._NCCL_AVAILABLE = True  # type: ignore[attr-defined]
with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message=".*other operators may also be overridden")
    for _name in _OPS:
        _through_gloo(_name)
