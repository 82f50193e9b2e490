"""Log-probabilities of the rows under the model without its adapter: computed when a step first asks for one, kept in the run folder.

Each row is computed alone, so its value does not depend on what it is asked for with: a file that is lost, or half written, is made again
to the same bits.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

_SEQUENCES = 2  # of a row, at most


class Kept:
    """fp32 [rows, 2] in a mapped file, each value beside its inverted bits: what was torn or never written is told by that."""

    def __init__(self, file: Path, rows: int) -> None:
        size = rows * _SEQUENCES * 8
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if os.fstat(descriptor).st_size != size:
                os.ftruncate(descriptor, 0)
                os.posix_fallocate(descriptor, 0, size)  # a disk that is full says so now, and not by a signal later
            memory = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        self._words: npt.NDArray[np.uint32] = np.frombuffer(memory, np.uint32).reshape(rows, _SEQUENCES, 2)

    def missing(self, rows: list[int], sequences: int) -> list[int]:
        """Those of the rows whose values are not known."""
        words = self._words[rows, :sequences]
        known = (words[..., 0] == ~words[..., 1]).all(1)
        return [row for row, there in zip(rows, known.tolist(), strict=True) if not there]

    def put(self, row: int, values: list[float]) -> None:
        words = np.array(values, np.float32).view(np.uint32)
        self._words[row, : len(values), 0] = words
        self._words[row, : len(values), 1] = ~words

    def get(self, rows: list[int], sequences: int) -> npt.NDArray[np.float32]:
        """[rows, sequences]"""
        return np.ascontiguousarray(self._words[rows, :sequences, 0]).view(np.float32)
