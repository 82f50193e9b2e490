"""Log-probabilities of the rows under the model before training: computed when a step first asks for one, kept in the run folder.

Each row is computed with those beside it in the first epoch, so its value does not depend on what it is asked for with: a file that is
lost, or half written, is made again to the same bits. How many are computed together follows from the micro-batches of the step that they
are first due in. Where memory ran out in that very step, its rows keep what they were given before, and get rounding of their own if the
file is lost, too.
"""

from __future__ import annotations

import mmap
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from holdfast.run.sampling.shuffle import Rows
from holdfast.trainer.tasks.text.packing import on_device

_SEQUENCES = 2  # of a row, at most


class StoredValues:
    """fp32 [rows, 2] in a mapped file, each value beside its inverted bits: what was torn or never written is told by that.

    trial: what is added stays in memory.
    """

    def __init__(self, file: Path, rows: int, trial: bool = False) -> None:
        size = rows * _SEQUENCES * 8
        if trial:
            there = file.read_bytes() if file.exists() else b""
            memory: Any = bytearray(there if len(there) == size else size)
        else:
            memory = _mapped(file, size)
        self._words: npt.NDArray[np.uint32] = np.frombuffer(memory, np.uint32).reshape(rows, _SEQUENCES, 2)

    def missing(self, rows: list[int], sequences: int) -> list[int]:
        """Return those of the rows whose values are not known. One that is not finite may be a card's passing error, and is none."""
        words = self._words[rows, :sequences]
        known = ((words[..., 0] == ~words[..., 1]) & np.isfinite(self.get(rows, sequences))).all(1)
        return [row for row, there in zip(rows, known.tolist(), strict=True) if not there]

    def put(self, row: int, values: list[float]) -> None:
        words = np.array(values, np.float32).view(np.uint32)
        self._words[row, : len(values), 0] = words
        self._words[row, : len(values), 1] = ~words

    def get(self, rows: list[int], sequences: int) -> npt.NDArray[np.float32]:
        """Return the values of rows: [rows, sequences]."""
        return np.ascontiguousarray(self._words[rows, :sequences, 0]).view(np.float32)


def _mapped(file: Path, size: int) -> mmap.mmap:
    """Map a file of a size; one of another size is begun anew."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if os.fstat(descriptor).st_size != size:
            os.ftruncate(descriptor, 0)
            os.posix_fallocate(descriptor, 0, size)  # a disk that is full says so now, and not by a signal later
        return mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)


class Portions:
    """Rows in an order, cut into what one pass takes: `budget` tokens, of rows that are padded to the longest where they are not packed.

    budget: for all, or for each place of the order; that of its first row holds for a portion.
    """

    def __init__(self, order: Rows, lengths: Rows, budget: int | Rows, packed: bool) -> None:
        first = np.sort(np.unique(order, return_index=True)[1])  # a mixture draws a row more than once
        self._order, budgets = order[first].tolist(), np.broadcast_to(budget, len(order))[first].tolist()
        self._begins, self._of = list[int](), np.full(len(lengths), -1)
        width = tokens = allowed = 0
        for at, (row, length) in enumerate(zip(self._order, lengths[self._order].tolist(), strict=True)):
            width, tokens = max(width, length), tokens + length
            if not self._begins or (tokens if packed else width * (at + 1 - self._begins[-1])) > allowed:
                self._begins.append(at)
                width = tokens = length
                allowed = budgets[at]
            self._of[row] = len(self._begins) - 1
        self._begins.append(len(self._order))

    def of(self, row: int) -> list[int]:
        """Return the rows of the portion that a row is in; the row alone where it is in none."""
        number = int(self._of[row])
        return [row] if number < 0 else self._order[self._begins[number] : self._begins[number + 1]]


class Values:
    """Reference values of all rows, fp32 [rows, sequences], on the device that computes; in `kept`, too, as soon as they have come there.

    score: log-probabilities of rows of one portion, [rows * sequences].
    """

    def __init__(self, portions: Portions, kept: StoredValues | None, rows: int, sequences: int, device: torch.device) -> None:
        self._portions, self._kept, self._sequences, self._device = portions, kept, sequences, device
        values, self._known = np.zeros((rows, sequences), np.float32), np.zeros(rows, np.bool_)
        if kept is not None:
            everything = list(range(rows))
            self._known[:] = True
            self._known[kept.missing(everything, sequences)] = False
            values = kept.get(everything, sequences)
        self._values = torch.from_numpy(values).to(device)
        self._coming = deque[tuple[list[int], Tensor, Any]]()

    def cut(self, portions: Portions) -> None:
        """Score in these portions what is not known yet."""
        self._portions = portions

    def compute(self, rows: list[int], score: Callable[[list[int]], Tensor]) -> None:
        """Score those of the rows that are not known, with their portions. Waits for nothing. What is known stays as it is."""
        self._keep_come()
        for row in rows:
            if self._known[row]:
                continue
            portion = self._portions.of(row)
            found = score(portion).view(-1, self._sequences)
            if self._known[portion].any():  # in a portion of another cut
                new = [at for at, one in enumerate(portion) if not self._known[one]]
                portion, found = [portion[at] for at in new], found[new]
            self._values.index_copy_(0, on_device(torch.tensor(portion), self._device), found)
            self._known[portion] = True
            if self._kept is not None:
                self._send(portion, found)

    def of(self, rows: list[int]) -> Tensor:
        """Return the values [rows * sequences] of rows that were computed."""
        return self._values.index_select(0, on_device(torch.tensor(rows), self._device)).view(-1)

    def _send(self, rows: list[int], found: Tensor) -> None:
        if self._device.type != "cuda":
            self._coming.append((rows, found, None))
            return self._keep_come()
        there = torch.empty(found.shape, pin_memory=True).copy_(found, non_blocking=True)
        done: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record(torch.cuda.current_stream(self._device))
        self._coming.append((rows, there, done))
        return None

    def _keep_come(self) -> None:
        while self._coming and (self._coming[0][2] is None or self._coming[0][2].query()):
            rows, values, _ = self._coming.popleft()
            for row, one in zip(rows, values.tolist(), strict=True):
                self._kept.put(row, one)  # type: ignore[union-attr]
