"""Keep what a backward pass needs in main memory, not on the device. The same bits, less device memory, a longer step."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

Packed = Tensor | tuple[torch.device, Tensor]


class HostActivations:
    """Use it around a forward pass. Parameters and buffers of `model` stay where they are: they are on the device anyhow."""

    def __init__(self, model: nn.Module) -> None:
        self.resident = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}

    def __call__(self) -> AbstractContextManager[None]:
        return torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    def _pack(self, tensor: Tensor) -> Packed:
        if tensor.untyped_storage().data_ptr() in self.resident:
            return tensor
        copy = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
        return tensor.device, copy.copy_(tensor)

    def _unpack(self, packed: Packed) -> Tensor:
        return packed if isinstance(packed, Tensor) else packed[1].to(packed[0])
