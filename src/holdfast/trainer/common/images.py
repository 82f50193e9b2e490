"""Tensors as safetensors images that are refreshed in place: the layout is fixed once, then only bytes move."""

from __future__ import annotations

import mmap
import warnings
from collections.abc import Mapping

import numpy as np
import orjson
import torch
from safetensors.torch import load, save
from torch import Tensor

from holdfast.base_model.tensor_header import pack_header

ABSURD = 1e10  # no value that training makes is as large
_NAMES = {torch.uint8: "U8", torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64", torch.int64: "I64"}
_DTYPES = list(_NAMES)  # the later ones stand first
_MAGNITUDE, _ABSURD_WORD = 0x7FFF, 0x5015  # of bf16: all bits but the sign; 1e10


class TensorImage:
    """The safetensors image of named tensors that change their values but not their shapes.

    `tensors` are live: each `write` copies what they hold at that moment.
    """

    def __init__(self, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
        self.tensors = dict(tensors)
        self.header, offsets = layout(self.tensors, metadata)
        self._runs = _runs(self.tensors, {name: len(self.header) + start for name, start in offsets.items()})
        self.bytes = len(self.header) + sum(tensor.nbytes for tensor in self.tensors.values())

    def write(self, memory: mmap.mmap, at: int) -> None:
        """Copy header and tensors to `at` in a mapped file; waits until they have left their device. Nothing may change them meanwhile."""
        memory[at : at + len(self.header)] = self.header
        for run, start in self._runs:
            self._view(memory, at, run, start).copy_(run)

    def extremes(self) -> list[Tensor]:
        """Return the smallest and the largest value, fp32, of each stretch of tensors on a card; NaN where it contains one."""
        return [value.float() for run, _ in self._runs if run.is_cuda for value in torch.aminmax(run)]

    def finite(self, memory: mmap.mmap, at: int) -> bool:
        """Return whether all values written at `at` from tensors in main memory are finite and none is absurdly large.

        Reads in one thread, beside those that train.
        """
        return all(_is_sane(self._view(memory, at, run, start)) for run, start in self._runs if not run.is_cuda)

    @staticmethod
    def _view(memory: mmap.mmap, at: int, run: Tensor, start: int) -> Tensor:
        return torch.frombuffer(memory, dtype=run.dtype, count=run.numel(), offset=at + start)

    def to_bytes(self) -> bytes:
        """Copy the current image into memory of its own."""
        return save({name: tensor.detach().cpu().contiguous() for name, tensor in self.tensors.items()}, _metadata(self.header))

    def read(self, image: bytes) -> None:
        """Copy an image's values back into the live tensors. Raises ValueError when names or shapes differ."""
        if image.startswith(self.header):  # laid out alike: no second copy of what may be gigabytes
            with torch.no_grad(), warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="The given buffer is not writable")
                for run, start in self._runs:
                    run.copy_(torch.frombuffer(image, dtype=run.dtype, count=run.numel(), offset=start))
            return
        loaded = load(image)
        if set(loaded) != set(self.tensors):
            differing = sorted(set(loaded) ^ set(self.tensors))
            raise ValueError(f"the saved state has other tensors: {differing[:3]} ({len(differing)} differ)")
        with torch.no_grad():
            for name, tensor in self.tensors.items():
                if loaded[name].shape != tensor.shape:
                    raise ValueError(f"{name} was saved with shape {tuple(loaded[name].shape)}, it is {tuple(tensor.shape)}")
                tensor.copy_(loaded[name])


def layout(tensors: Mapping[str, Tensor], metadata: dict[str, str] | None) -> tuple[bytes, dict[str, int]]:
    """Return (header, offset of each tensor behind it) of an image as the safetensors library lays it out, without copying values."""
    order = sorted(tensors, key=lambda name: (-_DTYPES.index(tensors[name].dtype), name))
    return pack_header(((name, _NAMES[(one := tensors[name]).dtype], one.shape, one.nbytes) for name in order), metadata)


def _is_sane(part: Tensor) -> bool:
    if part.dtype == torch.bfloat16:  # which numpy has not: of its bits, whose largest magnitudes stand last among either sign's
        words = part.view(torch.int16).numpy()
        return max(int(words.max()) & _MAGNITUDE, int(words.view(np.uint16).max()) & _MAGNITUDE) <= _ABSURD_WORD
    with np.errstate(invalid="ignore", over="ignore"):
        total = np.add.reduce(part.numpy(), dtype=np.float64 if part.dtype == torch.float16 else None)  # fp32 overflows where it is absurd
        return bool(abs(total) <= len(part) * ABSURD)


def _runs(tensors: Mapping[str, Tensor], starts: Mapping[str, int]) -> list[tuple[Tensor, int]]:
    """Return flat tensors, each with its offset in the image; tensors adjacent both in the image and in memory become one."""
    runs: list[tuple[Tensor, int]] = []
    for name in sorted(starts, key=lambda name: starts[name]):
        flat = tensors[name].detach().view(-1)
        before = runs[-1][0] if runs else None
        if before is not None and _follows(flat, before):
            joined = before.as_strided((before.numel() + flat.numel(),), (1,), before.storage_offset())
            runs[-1] = (joined, runs[-1][1])
        else:
            runs.append((flat, starts[name]))
    return runs


def _follows(tensor: Tensor, before: Tensor) -> bool:
    same_block = tensor.untyped_storage().data_ptr() == before.untyped_storage().data_ptr() and tensor.dtype == before.dtype
    return same_block and tensor.storage_offset() == before.storage_offset() + before.numel()


def _metadata(header: bytes) -> dict[str, str] | None:
    value = orjson.loads(header[8:]).get("__metadata__")
    return value if value else None
