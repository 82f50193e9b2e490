"""Whether a safetensors file is whole and finite. Reads the bytes alone."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.base.safe_open import open_regular
from holdfast.base_model.tensor_header import NoTensors, TensorEntry, read_header

_BLOCK = 1 << 24  # bytes looked at together
_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "U64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2}
_WORD: dict[int, np.dtype[Any]] = {8: np.dtype(np.uint64), 4: np.dtype(np.uint32), 2: np.dtype(np.uint16)}
_EXPONENT = {"F64": 0x7FF << 52, "F32": 0xFF << 23, "F16": 0x7C00, "BF16": 0x7F80}  # all of its bits: infinite, or no number


class NotWhole(Exception):
    """A checkpoint, or a file of one, that must not be gone on from. The message says why."""


def prove_tensors(file: Path) -> frozenset[str]:
    """Return the names of a file's tensors. Raises NotWhole where the file is torn, or a value is not finite."""
    try:
        with open_regular(file) as handle:
            tensors, _ = read_header(handle)
            for name, stored in tensors.items():
                _prove(file, handle.fileno(), name, stored)
    except NoTensors as error:
        raise NotWhole(f"{file.name} is torn: {error}") from None
    except OSError as error:
        raise NotWhole(f"{file.name} cannot be read: {error.strerror}") from None
    return frozenset(tensors)


def _prove(file: Path, descriptor: int, name: str, stored: TensorEntry) -> None:
    count = math.prod(stored.shape)
    if stored.dtype in _BYTES and stored.end - stored.begin != count * _BYTES[stored.dtype]:
        raise NotWhole(f"{file.name} is damaged: {name} has {stored.end - stored.begin} bytes for {count} values")
    if stored.dtype not in _EXPONENT:
        return
    word = _WORD[_BYTES[stored.dtype]]
    mask = np.array(_EXPONENT[stored.dtype], word)
    for at in range(stored.begin, stored.end, _BLOCK):
        values = np.frombuffer(os.pread(descriptor, min(_BLOCK, stored.end - at), at), dtype=word)
        if bool(((values & mask) == mask).any()):
            raise NotWhole(f"{file.name}: {name} holds a value that is not finite")
