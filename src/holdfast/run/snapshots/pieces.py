"""Names of pieces of tensors, and the safetensors images that pieces of several ranks make up together. Bytes only, no tensors.

A rank's image holds `NAME[START:END]`, flat stretches of tensors, and in its metadata, as "whole", the header of the image that all ranks'
pieces make up. So what a checkpoint holds is the plain file that one rank would write, to the byte, on any number of ranks.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import orjson

from holdfast.base.files import Json

WHOLE = "whole"  # the metadata that holds the header of all
_PIECE = re.compile(r"(.*)\[(\d+):(\d+)\]")
_WIDTHS = {"U8": 1, "F16": 2, "BF16": 2, "F32": 4, "F64": 8, "I64": 8}


@dataclass(frozen=True)
class JoinedImage:
    """An image in stretches that lie elsewhere, in order: it is written without ever being in one place."""

    stretches: tuple[memoryview | bytes, ...]

    def __len__(self) -> int:
        return sum(map(len, self.stretches))

    def __bytes__(self) -> bytes:
        return b"".join(self.stretches)


Image: TypeAlias = bytes | JoinedImage


def stretches(image: Image) -> Sequence[memoryview | bytes]:
    """Return what an image consists of, in order."""
    return image.stretches if isinstance(image, JoinedImage) else (image,)


def piece_name(name: str, start: int, end: int, size: int) -> str:
    """Name elements `start` to `end` of a tensor of `size`, in flat order; all of it has the tensor's own name."""
    return name if (start, end) == (0, size) else f"{name}[{start}:{end}]"


def piece_of(name: str) -> tuple[str, int | None]:
    """Parse the name of a piece into (tensor, where the piece begins in it, in elements); None: it is the tensor."""
    found = _PIECE.fullmatch(name)
    return (found[1], int(found[2])) if found else (name, None)


def header_of(image: bytes | memoryview) -> tuple[Json, int]:
    """Read (entries of a safetensors image, where its values begin)."""
    (size,) = struct.unpack_from("<Q", image)
    entries: Json = orjson.loads(bytes(image[8 : 8 + size]))
    return entries, 8 + size


def join(images: Sequence[bytes | memoryview]) -> JoinedImage:
    """Join the pieces of all ranks to one image. Raises ValueError where they make none: one is missing, or is of another state."""
    first, _ = header_of(images[0])
    told: str = first["__metadata__"][WHOLE]
    header = struct.pack("<Q", len(told.encode())) + told.encode()
    places: list[tuple[int, memoryview]] = []
    alone: dict[str, bytes] = {}
    entries: Json = orjson.loads(told)
    for rank, image in enumerate(images):
        for name, start, values in _values(image, told):
            tensor, at = piece_of(name)
            begin, _ = entries[tensor]["data_offsets"]
            if at is None and name in alone:
                if alone[name] != values:
                    raise ValueError(f"{name} is another one on rank {rank}")
                continue
            if at is None and len(images) > 1:
                alone[name] = bytes(values)
            places.append((begin + start, values))
    end = 0
    for begin, values in (places := sorted(places, key=lambda place: place[0])):
        if begin != end:
            raise ValueError(f"{_at(entries, min(begin, end))}: its pieces are not those of one state")
        end += len(values)
    if end != (size := max((entry["data_offsets"][1] for name, entry in entries.items() if name != "__metadata__"), default=0)):
        raise ValueError(f"{size - end:,} bytes of {size:,} are missing, from {_at(entries, end)} on")
    return JoinedImage((header, *(values for _, values in places)))


def _values(image: bytes | memoryview, told: str) -> Iterator[tuple[str, int, memoryview]]:
    """Yield (name, bytes from its tensor's beginning, values) of each piece. Raises ValueError where it was made for another whole."""
    entries, base = header_of(image)
    if entries.pop("__metadata__", {}).get(WHOLE) != told:
        raise ValueError("the ranks' pieces are of different models")
    with memoryview(image) as all_of_it:
        for name, entry in entries.items():
            begin, end = entry["data_offsets"]
            if end > begin:
                start = (piece_of(name)[1] or 0) * _WIDTHS[entry["dtype"]]
                yield name, start, all_of_it[base + begin : base + end]


def _at(entries: Json, place: int) -> str:
    """Return the tensor that has a byte of the whole image."""
    places = {name: entry["data_offsets"] for name, entry in entries.items() if name != "__metadata__"}
    found = (name for name, (begin, end) in places.items() if begin <= place < end)
    return next(found, "its end")


@dataclass(frozen=True)
class ShardedState:
    """The complete state after `step`, of all ranks, as it lies in their files."""

    step: int
    meta: Json
    artifact: JoinedImage
    state: JoinedImage
