"""The image of a rank's pieces of tensors; it reads its own bytes back, or its part of what any number of ranks left together."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from holdfast.run.snapshots.pieces import WHOLE, header_of, piece_of
from holdfast.trainer.common.images import TensorImage, layout


class PieceImage(TensorImage):
    """Of tensors that are pieces, by names of run/snapshots/pieces.py, and of whole ones that all ranks have alike.

    whole: the shapes of what they are pieces of, by name behind the last slash.
    """

    def __init__(self, tensors: Mapping[str, Tensor], whole: Mapping[str, Sequence[int]], metadata: dict[str, str] | None = None) -> None:
        header, _ = layout(_all(tensors, whole), metadata)
        super().__init__(tensors, (metadata or {}) | {WHOLE: header[8:].decode()})

    def read(self, image: bytes) -> None:
        for name, values in self.of(image):
            with torch.no_grad():
                self.tensors[name].view(-1).copy_(values)

    def of(self, image: bytes) -> list[tuple[str, Tensor]]:
        """Return (name, flat tensor) of each tensor in an image. Raises ValueError where one is missing or has another size."""
        entries, base = header_of(image)
        found = []
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given buffer is not writable")
            for name, tensor in self.tensors.items():
                (whole, start), entry = piece_of(name), entries.get(name)
                at = 0 if entry is not None else (start or 0) * tensor.itemsize
                if entry is None and (entry := entries.get(whole)) is None:
                    raise ValueError(f"the saved state has no {name}")
                begin, end = entry["data_offsets"]
                if begin + at + tensor.nbytes > end or end - begin != tensor.itemsize * math.prod(entry["shape"]):
                    raise ValueError(f"{whole} was saved with shape {tuple(entry['shape'])} and {end - begin:,} bytes")
                if tensor.numel():
                    found.append((name, torch.frombuffer(image, dtype=tensor.dtype, count=tensor.numel(), offset=base + begin + at)))
        return found


def _all(tensors: Mapping[str, Tensor], whole: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    """Return empty tensors in the shapes that all ranks' pieces make up together."""
    found, kinds = {}, {}
    for name, tensor in tensors.items():
        named, _ = piece_of(name)
        kind, slash, bare = named.rpartition("/")
        if bare in whole:
            kinds[kind + slash] = tensor.dtype
        else:
            found[name] = tensor
    for kind, dtype in kinds.items():
        found |= {f"{kind}{name}": torch.empty(*shape, dtype=dtype, device="meta") for name, shape in whole.items()}
    return found
