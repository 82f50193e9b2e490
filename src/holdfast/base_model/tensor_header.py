"""The header of a safetensors file: names, types, shapes and places of the tensors behind it, as the safetensors library writes it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import orjson

from holdfast.base.files import Json

_LFS = b"version "  # how a pointer begins; as the length of a header it is beyond all files
_LONGEST = 100 << 20  # bytes of a header, as the library has it


@dataclass(frozen=True)
class TensorEntry:
    """A tensor in a safetensors file: type as written there, shape, and where its bytes begin and end in the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class NoTensors(ValueError):
    """A file that is no whole safetensors file; the message says why. pointer: Git LFS left it in the file's place."""

    pointer = False


def pack_header(
    tensors: Iterable[tuple[str, str, Sequence[int], int]], metadata: Mapping[str, str] | None = None
) -> tuple[bytes, dict[str, int]]:
    """Return the header with its length before it, and how many bytes behind it each tensor begins.

    tensors: (name, type as safetensors calls it, shape, bytes), in the order they follow in: wide types first, so that each is aligned.
    """
    entries: Json = {"__metadata__": metadata} if metadata else {}
    places, at = {}, 0
    for name, dtype, shape, size in tensors:
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        places[name], at = at, at + size
    text = orjson.dumps(entries)
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, places


def read_header(handle: BinaryIO) -> tuple[dict[str, TensorEntry], dict[str, str]]:
    """Read (tensors by name, metadata) of an open safetensors file, after checking that header and size agree. Raises NoTensors."""
    size = handle.seek(0, os.SEEK_END)
    handle.seek(0)
    start = handle.read(8)
    if start == _LFS:
        error = NoTensors("it is a pointer of Git LFS")
        error.pointer = True
        raise error
    length = int.from_bytes(start, "little") if len(start) == 8 else size
    if length > min(size - 8, _LONGEST):
        raise NoTensors(f"{size:,} bytes cannot hold its header of {length:,}")
    try:
        header: dict[str, Any] = orjson.loads(handle.read(length))
    except orjson.JSONDecodeError as error:
        raise NoTensors(f"its header is not JSON ({error})") from None
    at = 8 + length
    try:
        metadata = header.pop("__metadata__", {})
        tensors = {name: _stored(entry, at) for name, entry in header.items()}
    except (AttributeError, KeyError, ValueError, TypeError) as error:
        raise NoTensors(f"its header describes no tensors ({repr(error)[:200]})") from None
    end = max((tensor.end for tensor in tensors.values()), default=at)
    if end != size:
        raise NoTensors(f"it has {size:,} bytes, its header describes {end:,}")
    return tensors, metadata


def _stored(entry: Any, at: int) -> TensorEntry:
    """Parse a tensor of a header; `at`: where the file's data begin. Raises ValueError, KeyError or TypeError where it describes none."""
    dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    numbers = [*shape, begin, end]
    if not isinstance(dtype, str) or any(type(number) is not int or number < 0 for number in numbers) or begin > end:
        raise ValueError(f"dtype {dtype!r}, numbers {numbers}"[:200])
    if math.prod(shape) > 8 * (end - begin):
        raise ValueError(f"{end - begin:,} bytes cannot hold {math.prod(shape):,} values")
    return TensorEntry(dtype, tuple(shape), at + begin, at + end)
