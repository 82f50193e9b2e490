"""Arrays in a safetensors file: its header, and a mapping of what follows it. Knows nothing of rows."""

from __future__ import annotations

import io
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson

from holdfast.base.files import Json
from holdfast.base.safe_open import open_regular
from holdfast.base_model.tensor_header import TensorEntry, pack_header, read_header

Array = npt.NDArray[Any]
_TYPES: dict[str, np.dtype[Any]] = {
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "U8": np.dtype("u1"),
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
}
_NAMES = {kind: name for name, kind in _TYPES.items()}


class Span(NamedTuple):
    """Where a one-dimensional array lies in its file: element type, first byte, byte after the last."""

    kind: np.dtype[Any]
    begin: int
    end: int


def in_file_order(kinds: Mapping[str, np.dtype[Any]]) -> list[str]:
    """Sort wide types first, then by name: as safetensors itself writes them, so that every array is aligned."""
    return sorted(kinds, key=lambda name: (-kinds[name].itemsize, name))


def header_of(facts: Json, kinds: Mapping[str, np.dtype[Any]], sizes: Mapping[str, int]) -> bytes:
    """Return the bytes before the arrays; `sizes` in elements. Equal to the header that safetensors writes."""
    columns = ((name, _NAMES[kinds[name]], (sizes[name],), sizes[name] * kinds[name].itemsize) for name in in_file_order(kinds))
    return pack_header(columns, {"holdfast": orjson.dumps(facts).decode()})[0]


def pack(arrays: Mapping[str, Array], facts: Json) -> bytes:
    """Pack one-dimensional arrays into the bytes of a whole file."""
    kinds = {name: array.dtype for name, array in arrays.items()}
    header = header_of(facts, kinds, {name: len(array) for name, array in arrays.items()})
    return b"".join([header, *(arrays[name].tobytes() for name in in_file_order(kinds))])


def read_facts(handle: BinaryIO) -> tuple[Json, dict[str, Span]]:
    """Read the facts, and where each array lies. Raises ValueError when this is no whole file of ours."""
    tensors, metadata = read_header(handle)
    try:
        facts: Json = orjson.loads(metadata["holdfast"])
        return facts, {name: _span(entry) for name, entry in tensors.items()}
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"its header is damaged ({error!r})") from None


def _span(entry: TensorEntry) -> Span:
    kind = _TYPES[entry.dtype]
    if entry.end - entry.begin != entry.shape[0] * kind.itemsize:
        raise ValueError(f"bytes {entry.begin} to {entry.end}")
    return Span(kind, entry.begin, entry.end)


def unpack(data: bytes) -> tuple[Json, dict[str, Array]]:
    """Unpack facts and arrays of a whole file that `pack` made. Raises ValueError when it is damaged."""
    facts, spans = read_facts(io.BytesIO(data))
    return facts, {name: np.frombuffer(data[span.begin : span.end], span.kind) for name, span in spans.items()}


def map_arrays(path: Path) -> tuple[Json, dict[str, Array]]:
    """Map facts and arrays of a file, read-only. Raises FileNotFoundError, or ValueError when it is damaged."""
    with open_regular(path) as handle:
        try:
            facts, spans = read_facts(handle)
        except ValueError as error:
            raise ValueError(f"{path} is damaged: {error}") from None
        raw = np.frombuffer(mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    return facts, {name: raw[span.begin : span.end].view(span.kind) for name, span in spans.items()}


def read_array(path: Path, name: str) -> Array:
    """Read one array of a file into memory."""
    with open_regular(path) as handle:
        span = read_facts(handle)[1][name]
        handle.seek(span.begin)
        return np.frombuffer(handle.read(span.end - span.begin), span.kind)
