"""Keep what a backward pass needs in main memory, not on the device. The same bits, less device memory, a longer step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from holdfast.machine.host_memory import host_memory

Packed = Tensor | tuple[torch.device, Tensor]
_LOOK_BYTES = 64 << 20  # kept between two looks at the host's memory
_LEFT_SHARE = 0.1  # of the host's memory, never taken: pinned memory cannot be swapped, and the kernel ends processes before it runs out


class HostActivations:
    """Use it around a forward pass. Parameters and buffers of `model` stay where they are.

    What several operations keep (a layer's input, for each of its projections) is copied once. Copies follow each other in the device's own
    order and the host waits for none; torch keeps pinned memory until those out of it are done. Where main memory runs short the pass
    fails as one that does not fit, rather than the machine.
    """

    def __init__(self, model: nn.Module, read: Callable[[], dict[str, int]] = host_memory) -> None:
        self.resident = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}
        self.read = read
        self.kept = self._looked_at = 0  # bytes in main memory, of this pass
        self._copies: dict[tuple[Any, ...], tuple[StorageWeakRef, Tensor]] = {}

    @contextmanager
    def __call__(self) -> Iterator[None]:
        self.kept, self._looked_at = 0, -_LOOK_BYTES
        try:
            with torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack):
                yield
        finally:
            self._copies.clear()

    def _pack(self, tensor: Tensor) -> Packed:
        storage = tensor.untyped_storage()
        if storage._cdata in self.resident:
            return tensor
        layout = (tensor.storage_offset(), tensor.dtype, tensor.shape, tensor.stride())
        key = (storage._cdata, tensor._version, *layout)
        if key not in self._copies:
            self._refuse_the_last()
            copy = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda).copy_(tensor, non_blocking=True)
            self.kept += copy.nbytes
            # the weak reference keeps the storage's key from being another's while the pass lasts
            self._copies[key] = (StorageWeakRef(storage), copy)  # type: ignore[no-untyped-call]
        return tensor.device, self._copies[key][1]

    def _unpack(self, packed: Packed) -> Tensor:
        return packed if isinstance(packed, Tensor) else packed[1].to(packed[0], non_blocking=True)

    def _refuse_the_last(self) -> None:
        """Raise MemoryError where main memory runs short, now and then looked at."""
        if self.kept - self._looked_at < _LOOK_BYTES:
            return
        self._looked_at = self.kept
        now = self.read()
        total, available = now.get("MemTotal"), now.get("MemAvailable")
        if total and available is not None and available < _LEFT_SHARE * total:
            raise MemoryError(f"main memory has {available >> 20:,} of {total >> 20:,} MiB left for activations")
