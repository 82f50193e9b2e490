"""Tensors as safetensors images that are refreshed in place: the layout is fixed once, then only bytes move."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping

import orjson
import torch
from safetensors.torch import load, save
from torch import Tensor


class Image:
    """The safetensors image of named tensors that change their values but not their shapes.

    `tensors` are live: each `write` copies what they hold at that moment.
    """

    def __init__(self, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
        self.tensors = dict(tensors)
        first = save({name: tensor.detach().cpu().contiguous() for name, tensor in self.tensors.items()}, metadata)
        length = struct.unpack("<Q", first[:8])[0]
        self.header = first[: 8 + length]
        entries = orjson.loads(first[8 : 8 + length])
        self._places = [(name, 8 + length + entries[name]["data_offsets"][0]) for name in self.tensors]
        self.bytes = len(first)

    def write(self, memory: mmap.mmap, at: int) -> bool:
        """Copy header and tensors to `at` in a mapped file; whether every value is finite."""
        memory[at : at + len(self.header)] = self.header
        finite = True
        for name, offset in self._places:
            tensor = self.tensors[name]
            view = torch.frombuffer(memory, dtype=tensor.dtype, count=tensor.numel(), offset=at + offset).view(tensor.shape)
            view.copy_(tensor.detach())
            finite = finite and bool(torch.isfinite(view).all())
        return finite

    def to_bytes(self) -> bytes:
        """The image now, in memory of its own."""
        return save({name: tensor.detach().cpu().contiguous() for name, tensor in self.tensors.items()}, _metadata(self.header))

    def read(self, image: bytes) -> None:
        """Copy an image's values back into the live tensors. Raises ValueError when names or shapes differ."""
        loaded = load(image)
        if set(loaded) != set(self.tensors):
            differing = sorted(set(loaded) ^ set(self.tensors))
            raise ValueError(f"the saved state has other tensors: {differing[:3]} ({len(differing)} differ)")
        with torch.no_grad():
            for name, tensor in self.tensors.items():
                if loaded[name].shape != tensor.shape:
                    raise ValueError(f"{name} was saved with shape {tuple(loaded[name].shape)}, it is {tuple(tensor.shape)}")
                tensor.copy_(loaded[name])


def _metadata(header: bytes) -> dict[str, str] | None:
    value = orjson.loads(header[8:]).get("__metadata__")
    return value if value else None
