"""Read tensors of safetensors files as numpy arrays, a stretch of rows at a time, and write files of them as they come.

bf16 is widened and rounded here, because numpy has no such type; rounding is to nearest, ties to even, as torch rounds.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import orjson

from holdfast.base.errors import BLOCKED, Stop
from holdfast.base.files import Json
from holdfast.base_model.folder import stored_tensors, weight_files
from holdfast.base_model.tensor_header import TensorEntry, pack_header

Floats: TypeAlias = npt.NDArray[np.float32]
FLOATS = {"F32": 4, "F16": 2, "BF16": 2}  # types that can be computed with, and their bytes
_STRETCH = 1 << 24  # bytes of fp32 that are in memory at a time, and one row at least
SHARD_BYTES = 5 * 10**9  # as transformers cuts them


@dataclass(frozen=True)
class StoredTensor:
    """A tensor and the file that holds it."""

    file: Path
    stored: TensorEntry

    @property
    def bytes(self) -> int:
        return self.stored.end - self.stored.begin

    def raw(self, first: int = 0, last: int | None = None) -> npt.NDArray[np.uint8]:
        """Return the bytes of rows [first, last) along the first axis, mapped and not read."""
        rows = self.stored.shape[0] if self.stored.shape else 1
        each = self.bytes // max(rows, 1)
        end = rows if last is None else last
        found: npt.NDArray[np.uint8] = np.memmap(self.file, np.uint8, "r")[
            self.stored.begin + first * each : self.stored.begin + end * each
        ]
        return found

    def rows(self, first: int = 0, last: int | None = None) -> Floats:
        """Return rows [first, last) as fp32. Raises Stop(1) for a type that is no plain float."""
        if self.stored.dtype not in FLOATS:
            text = f"{self.file}: a tensor of type {self.stored.dtype} cannot be computed with"
            raise Stop(BLOCKED, text, "give the base model in 16 or 32 bits with --base DIR")
        end = self.stored.shape[0] if last is None and self.stored.shape else last
        shape = (end - first, *self.stored.shape[1:]) if self.stored.shape and end is not None else ()
        return widen(self.raw(first, last), self.stored.dtype).reshape(shape)


def held_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Return every tensor of a model folder by name."""
    return {name: StoredTensor(file, stored) for file in weight_files(folder) for name, stored in stored_tensors(file).items()}


def tensors_of_file(file: Path) -> dict[str, StoredTensor]:
    return {name: StoredTensor(file, stored) for name, stored in stored_tensors(file).items()}


def widen(raw: npt.NDArray[np.uint8], dtype: str) -> Floats:
    """Convert bytes of a float type to fp32, exactly."""
    if dtype == "BF16":
        return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
    kind = "<f2" if dtype == "F16" else "<f4"
    found: Floats = raw.view(kind).astype(np.float32)
    return found


def narrow(values: Floats, dtype: str) -> npt.NDArray[np.uint8]:
    """Round fp32 once to a float type; return the bytes. Raises OverflowError where a value is finite and the type cannot hold it."""
    values = np.ascontiguousarray(values, np.float32)
    if dtype == "BF16":
        words = values.view(np.uint32)
        narrow_words: Any = ((words + 0x7FFF + ((words >> 16) & 1)) >> 16).astype("<u2")
        return as_bytes(narrow_words)
    with np.errstate(over="ignore"):
        found: Any = values.astype("<f2" if dtype == "F16" else "<f4")
    if dtype == "F16" and not np.isfinite(found).all():
        raise OverflowError(f"{float(np.abs(values).max()):.3g} is beyond what fp16 holds (65,504)")
    return as_bytes(found)


def as_bytes(values: Any) -> npt.NDArray[np.uint8]:
    found: npt.NDArray[np.uint8] = np.ascontiguousarray(values).view(np.uint8).reshape(-1)
    return found


def stretches(shape: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Yield (first, last) of stretches of rows that are computed at a time."""
    if not shape:
        yield 0, 1
        return
    each = max(1, _STRETCH // max(4, 4 * math.prod(shape[1:])))
    for first in range(0, shape[0], each):
        yield first, min(first + each, shape[0])


@dataclass(frozen=True)
class PendingTensor:
    """A tensor that is still to be written: its bytes are asked for when its turn comes, a stretch at a time."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    write: Callable[[], Iterable[npt.NDArray[np.uint8]]]


def write_shards(folder: Path, tensors: list[PendingTensor], most: int = SHARD_BYTES) -> list[tuple[Path, str]]:
    """Write model.safetensors, or shards of at most `most` bytes with their index; each file and its SHA-256, taken on the way."""
    shards: list[list[PendingTensor]] = [[]]
    for tensor in tensors:
        if shards[-1] and sum(one.bytes for one in shards[-1]) + tensor.bytes > most:
            shards.append([])
        shards[-1].append(tensor)
    if len(shards) == 1:
        file = folder / "model.safetensors"
        return [(file, _write(file, shards[0]))]
    names = [f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
    written = [(folder / name, _write(folder / name, shard)) for name, shard in zip(names, shards, strict=True)]
    index: Json = {
        "metadata": {"total_size": sum(tensor.bytes for tensor in tensors)},
        "weight_map": {tensor.name: name for name, shard in zip(names, shards, strict=True) for tensor in shard},
    }
    (folder / "model.safetensors.index.json").write_bytes(orjson.dumps(index, option=orjson.OPT_INDENT_2))
    return written


def _write(file: Path, tensors: list[PendingTensor]) -> str:
    header, _ = pack_header(((one.name, one.dtype, one.shape, one.bytes) for one in tensors), {"format": "pt"})
    digest = hashlib.sha256()
    with file.open("xb") as handle:

        def put(data: bytes | memoryview) -> int:
            digest.update(data)
            return handle.write(data)

        put(header)
        for tensor in tensors:
            written = sum(put(np.ascontiguousarray(part).data) for part in tensor.write())
            if written != tensor.bytes:
                raise ValueError(f"{tensor.name}: {written:,} bytes were made, {tensor.bytes:,} belong there")
        handle.flush()
        os.fsync(handle.fileno())
    return digest.hexdigest()
