"""Which rows of its data set a Trainer's step is computed from, as the data loader's own sampler tells. Standard library only.

    samples.jsonl    {"step": 9, "samples": [3, 17]} before a step, {"done": 9} after it

So the last line tells whether a step was in flight, and which. Older lines move to samples-before.jsonl, and from there to nowhere.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FILE, BEFORE = "samples.jsonl", "samples-before.jsonl"
_MOST = 16 << 20  # bytes of a file


class SamplerRows:
    """Of one process. Raises ValueError where the data loader has no sampler of batches that could be asked."""

    def __init__(self, loader: Any, accumulation: int, folder: Path) -> None:
        sampler = getattr(loader, "batch_sampler", None)
        if sampler is None or not hasattr(type(sampler), "__iter__"):
            raise ValueError("its data loader has no batch_sampler")
        self.batches = len(loader)
        self.accumulation, self.folder = accumulation, folder
        self.drawn: list[list[int]] = []  # of this epoch, those of finished steps emptied
        self.at = 0
        self.now: list[int] = []
        self._file = _opened(folder)
        _listen(sampler, self.drawn)

    def begin_epoch(self, trained: int) -> None:
        """Begin an epoch. trained: its steps that were computed before a restart; their batches are drawn again and passed over."""
        self.at = trained * self.accumulation

    def begin(self, step: int) -> None:
        """Begin a step; its batches are drawn."""
        following = min(self.at + self.accumulation, self.batches)
        self.now = [row for batch in self.drawn[self.at : following] for row in batch]
        self.drawn[self.at : following] = [[] for _ in self.drawn[self.at : following]]
        self.at = following
        self._write({"step": step, "samples": self.now})

    def end(self, step: int) -> None:
        """End a step, its update included."""
        self._write({"done": step})

    def _write(self, told: dict[str, Any]) -> None:
        os.write(self._file, json.dumps(told).encode() + b"\n")
        if os.fstat(self._file).st_size > _MOST:
            self.close()
            (self.folder / FILE).replace(self.folder / BEFORE)
            self._file = _opened(self.folder)

    def close(self) -> None:
        """Close the file: nothing more is to be noted."""
        os.close(self._file)


def _opened(folder: Path) -> int:
    """Open the file to append to, without what a process that died in mid-write has left behind its last whole line."""
    file = os.open(folder / FILE, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    size = os.fstat(file).st_size
    if size and os.pread(file, 1, size - 1) != b"\n":
        os.ftruncate(file, os.pread(file, size, 0).rfind(b"\n") + 1)
    return file


def _listen(sampler: Any, drawn: list[list[int]]) -> None:
    """Have each batch that is drawn noted; a new epoch begins the notes anew. The object stays what it was to everybody else."""
    kind = type(sampler)

    def __iter__(self: Any) -> Iterator[Any]:
        drawn.clear()
        for batch in kind.__iter__(self):
            drawn.append(list(batch) if isinstance(batch, (list, tuple)) and None not in batch else [])  # a stream's rows have no numbers
            yield batch

    sampler.__class__ = type(kind.__name__, (kind,), {"__iter__": __iter__, "__module__": kind.__module__})
