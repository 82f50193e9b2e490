"""Whether a safetensors file is whole and finite. Reads the bytes alone."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from holdfast.core.files import Json
from holdfast.core.safe_open import open_regular

_MOST_HEADER, _MOST_BYTES = 100 << 20, 1 << 50  # the format allows headers of 100 MB
_BLOCK = 1 << 24  # bytes looked at together
_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "U64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2}
_WORD: dict[int, np.dtype[Any]] = {8: np.dtype(np.uint64), 4: np.dtype(np.uint32), 2: np.dtype(np.uint16)}
_EXPONENT = {"F64": 0x7FF << 52, "F32": 0xFF << 23, "F16": 0x7C00, "BF16": 0x7F80}  # all of its bits: infinite, or no number


class NotWhole(Exception):
    """A checkpoint, or a file of one, that must not be gone on from. The message says why."""


def prove_tensors(file: Path) -> frozenset[str]:
    """The names of its tensors. Raises NotWhole where the file is torn, or a value is not finite."""
    try:
        with open_regular(file, _MOST_BYTES) as handle:
            size = os.fstat(handle.fileno()).st_size
            length = int.from_bytes(handle.read(8), "little")
            if size < 8 or not 2 <= length <= min(_MOST_HEADER, size - 8):
                raise NotWhole(f"{file.name} is torn: {size:,} bytes hold no header")
            header = orjson.loads(handle.read(length))
            tensors = {name: facts for name, facts in header.items() if name != "__metadata__"}
            end = max((facts["data_offsets"][1] for facts in tensors.values()), default=0)
            if 8 + length + end != size:
                raise NotWhole(f"{file.name} is torn: {size:,} bytes, and its header speaks of {8 + length + end:,}")
            for name, facts in tensors.items():
                _prove(file, handle.fileno(), 8 + length, name, facts)
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise NotWhole(f"{file.name} is damaged: its header is none ({type(error).__name__})") from None
    except OSError as error:
        raise NotWhole(f"{file.name} cannot be read: {error.strerror}") from None
    return frozenset(tensors)


def _prove(file: Path, descriptor: int, base: int, name: str, facts: Json) -> None:
    start, end = facts["data_offsets"]
    kind, count = facts["dtype"], math.prod(facts["shape"])
    if kind in _BYTES and end - start != count * _BYTES[kind]:
        raise NotWhole(f"{file.name} is damaged: {name} has {end - start} bytes for {count} values")
    if kind not in _EXPONENT:
        return
    word = _WORD[_BYTES[kind]]
    mask = np.array(_EXPONENT[kind], word)
    for at in range(start, end, _BLOCK):
        values = np.frombuffer(os.pread(descriptor, min(_BLOCK, end - at), base + at), dtype=word)
        if bool(((values & mask) == mask).any()):
            raise NotWhole(f"{file.name}: {name} holds a value that is not finite")
