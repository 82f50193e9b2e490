"""Write tensors of any device into one file, the bytes that safetensors would write, with one of them on the host at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from holdfast.base.files import replacing
from holdfast.base_model.tensor_header import pack_header

_NAMES = {torch.uint8: "U8", torch.int8: "I8", torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32"}
_ORDER = list(_NAMES)  # of safetensors, whose widest types come first


def write_tensors(place: Path | None, tensors: Mapping[str, Tensor]) -> str:
    """Write the tensors to a file, whole or not at all; return its SHA-256, also where there is no place or no room for it."""
    if place is None:
        return _write(tensors, None)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with replacing(place, durable=False) as handle:
            return _write(tensors, handle)
    except OSError:  # it is made again at the next start, to the same bits
        return _write(tensors, None)


def _write(tensors: Mapping[str, Tensor], file: BinaryIO | None) -> str:
    digest = hashlib.sha256()
    for piece in _pieces(tensors):
        digest.update(piece)
        if file is not None:
            file.write(piece)
    return digest.hexdigest()


def _pieces(tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    names = sorted(tensors, key=lambda name: (-_ORDER.index(tensors[name].dtype), name))
    yield pack_header((name, _NAMES[(one := tensors[name]).dtype], one.shape, one.nbytes) for name in names)[0]
    for name in names:
        yield tensors[name].detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
