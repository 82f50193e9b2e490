"""What an allocator holds for a step's blocks: torch's caching allocator on a card, glibc's heap in main memory. Pure.

The rules are those of c10/cuda/CUDACachingAllocator.cpp (torch 2.5 to 2.13, default settings): blocks are multiples of 512 bytes; up to
1 MiB they come out of segments of 2 MiB, below 10 MiB out of segments of 20 MiB, beyond of segments rounded up to 2 MiB; the smallest
free block that is large enough is taken, and split where what is left is worth it. Of glibc (malloc.c, _int_memalign of 2.36): one heap
that grows at its end, the smallest free block that is large enough, neighbours joined; torch asks for blocks at multiples of 64 bytes, and
glibc then looks for one that is larger by that, so that a block which was just freed does not serve the next one of its size. A block that
is a mapping of its own takes whole pages.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import Any

from holdfast.machine.heap import MAPPED_FROM
from holdfast.trainer.traced.ledger import Log

_MIB = 1 << 20
_UNIT, _SMALL, _SMALL_SEGMENT, _MIDDLE, _MIDDLE_SEGMENT = 512, _MIB, 2 * _MIB, 10 * _MIB, 20 * _MIB


@dataclass(eq=False)
class _Block:
    """A stretch of memory between its neighbours. order: among the blocks of its pool that were ever free."""

    size: int
    free: bool = True
    before: _Block | None = None
    after: _Block | None = None
    order: int = -1


class _Pool:
    """Free blocks, the smallest first; of two of a size the one that was free first. least_left: of what a block is cut for."""

    def __init__(self, least_left: int) -> None:
        self._least_left = least_left
        self._free: list[tuple[int, int]] = []  # (size, order)
        self._blocks: list[_Block] = []  # by order

    def take(self, size: int, beside: int = 0) -> _Block | None:
        """Take the smallest free block of `size + beside`, cut to size where the rest is worth keeping; None without one."""
        at = bisect_left(self._free, (size + beside, -1))
        return self.cut(self._blocks[self._free.pop(at)[1]], size) if at < len(self._free) else None

    def cut(self, block: _Block, size: int) -> _Block:
        """Take a block that is not among the free ones."""
        block.free = False
        if block.size - size >= self._least_left:
            rest = _Block(block.size - size, True, block, block.after)
            if block.after:
                block.after.before = rest
            block.size, block.after = size, rest
            self._add(rest)
        return block

    def give(self, block: _Block) -> None:
        """Free a block, joined with its free neighbours."""
        for other in (block.before, block.after):
            if other is None or not other.free:
                continue
            self.remove(other)
            block.size += other.size
            if other is block.before:
                block.before = other.before
                if block.before:
                    block.before.after = block
            else:
                block.after = other.after
                if block.after:
                    block.after.before = block
        block.free = True
        self._add(block)

    def remove(self, block: _Block) -> None:
        del self._free[bisect_left(self._free, (block.size, block.order))]

    def _add(self, block: _Block) -> None:
        if block.order < 0:
            block.order = len(self._blocks)
            self._blocks.append(block)
        insort(self._free, (block.size, block.order))


class Card:
    """torch's caching allocator. most: bytes of its segments, none of which is given back."""

    def __init__(self) -> None:
        self.most = 0
        self._pools = {True: _Pool(_UNIT), False: _Pool(_MIB + 1)}

    def take(self, size: int) -> tuple[_Pool, _Block]:
        size = max(_UNIT, -(-size // _UNIT) * _UNIT)
        small = size <= _SMALL
        pool = self._pools[small]
        return pool, pool.take(size) or pool.cut(self._segment(size, small), size)

    def give(self, taken: tuple[_Pool, _Block]) -> None:
        pool, block = taken
        pool.give(block)

    def _segment(self, size: int, small: bool) -> _Block:
        length = _SMALL_SEGMENT if small else _MIDDLE_SEGMENT if size < _MIDDLE else -(-size // _SMALL_SEGMENT) * _SMALL_SEGMENT
        self.most += length
        return _Block(length)


class Heap:
    """A heap as glibc has it where nothing is given back to the system. most: its length in bytes."""

    _HEADER, _UNIT, _LEAST = 16, 64, 32

    def __init__(self) -> None:
        self.most = 0
        self._pool = _Pool(64)
        self._end = _Block(0, free=False)  # stands behind the last block

    def take(self, size: int) -> _Block:
        size = -(-(size + self._HEADER) // self._UNIT) * self._UNIT
        return self._pool.take(size, self._UNIT + self._LEAST) or self._grown(size)

    def give(self, block: _Block) -> None:
        self._pool.give(block)

    def _grown(self, size: int) -> _Block:
        last = self._end.before
        if last is not None and last.free:
            self._pool.remove(last)
            self.most += size - last.size
            last.size, last.free = size, False
            return last
        block = self._end.before = _Block(size, False, last, self._end)
        if last:
            last.after = block
        self.most += size
        return block


class MappedHeap:
    """glibc where large blocks are mappings of their own, and all others in a heap. most: bytes of both."""

    _PAGE, _HEADER, _BESIDE = 4096, 8, 64 + 32  # what a block at a multiple of 64 is made larger by

    def __init__(self) -> None:
        self.most = self._mapped = 0
        self._heap = Heap()

    def take(self, size: int) -> _Block | int:
        taken: _Block | int
        asked = _chunk(_chunk(size) + self._BESIDE)
        if asked < MAPPED_FROM:
            taken = self._heap.take(size)
        else:
            taken = -(-(asked + self._HEADER) // self._PAGE) * self._PAGE
            self._mapped += taken
        self.most = max(self.most, self._mapped + self._heap.most)
        return taken

    def give(self, taken: _Block | int) -> None:
        if isinstance(taken, int):
            self._mapped -= taken
        else:
            self._heap.give(taken)


def _chunk(size: int) -> int:
    """Round a size up to a chunk of glibc, as its request2size does."""
    return (size + 8 + 15) // 16 * 16


def held(log: Log, begin: int, allocator: Card | Heap | MappedHeap) -> int:
    """Replay a log; return the most bytes its allocator holds. begin: moves before the step; blocks left of them count as in order."""
    blocks: dict[int, Any] = {}
    there: dict[int, None] = {}
    for number in log.moves[:begin]:
        if number > 0:
            there[number] = None
        else:
            there.pop(-number, None)
    for number in [*there, *log.moves[begin:]]:
        size = log.sizes[abs(number)]
        if not size:
            continue
        if number > 0:
            blocks[number] = allocator.take(size)
        elif -number in blocks:
            allocator.give(blocks.pop(-number))
    return allocator.most
