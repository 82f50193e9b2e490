"""The header of a safetensors file: names, types, shapes and places of the tensors behind it, as the safetensors library writes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import orjson

from holdfast.base.files import Json


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
