"""What an allocator holds for a step's blocks: torch's caching allocator on a card, glibc's heap in main memory. Pure.

The rules are those of c10/cuda/CUDACachingAllocator.cpp (torch 2.5 to 2.13, default settings): blocks are multiples of 512 bytes; up to
1 MiB they come out of segments of 2 MiB, below 10 MiB out of segments of 20 MiB, beyond of segments rounded up to 2 MiB; the smallest
free block that is large enough is taken, and split where what is left is worth it. Of glibc: one heap that grows at its end, the smallest
free block that is large enough, neighbours joined.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

from holdfast.trainer.traced.ledger import Log

_MIB = 1 << 20
_UNIT, _SMALL, _SMALL_SEGMENT, _MIDDLE, _MIDDLE_SEGMENT = 512, _MIB, 2 * _MIB, 10 * _MIB, 20 * _MIB


@dataclass(eq=False)
class _Block:
    size: int
    free: bool = True
    before: _Block | None = None
    after: _Block | None = None


class _Pool:
    """Free blocks, the smallest first; of two of a size the one that was made first."""

    def __init__(self, least_left: int) -> None:
        self.least_left = least_left
        self._free: list[tuple[int, int]] = []
        self._blocks: dict[int, _Block] = {}
        self._order: dict[int, int] = {}

    def add(self, block: _Block) -> None:
        order = self._order.setdefault(id(block), len(self._order))
        self._blocks[order] = block
        insort(self._free, (block.size, order))

    def remove(self, block: _Block) -> None:
        order = self._order[id(block)]
        del self._free[bisect_left(self._free, (block.size, order))]
        del self._blocks[order]

    def best(self, size: int) -> _Block | None:
        at = bisect_left(self._free, (size, -1))
        return self._blocks[self._free[at][1]] if at < len(self._free) else None


class Card:
    """torch's caching allocator. held: bytes of its segments; most: the most it held."""

    def __init__(self) -> None:
        self.held = self.most = 0
        self._pools = {True: _Pool(_UNIT), False: _Pool(_MIB + 1)}
        self._kept: list[_Block] = []  # all that were ever made: their ids stay theirs

    def take(self, size: int) -> tuple[bool, _Block]:
        size = max(_UNIT, -(-size // _UNIT) * _UNIT)
        small = size <= _SMALL
        pool = self._pools[small]
        block = pool.best(size)
        if block is None:
            block = self._segment(size, small)
        else:
            pool.remove(block)
        block.free = False
        if block.size - size >= pool.least_left:
            self._split(pool, block, size)
        return small, block

    def give(self, taken: tuple[bool, _Block]) -> None:
        small, block = taken
        pool = self._pools[small]
        for other in (block.before, block.after):
            if other is not None and other.free:
                pool.remove(other)
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
        pool.add(block)

    def _segment(self, size: int, small: bool) -> _Block:
        length = _SMALL_SEGMENT if small else _MIDDLE_SEGMENT if size < _MIDDLE else -(-size // _SMALL_SEGMENT) * _SMALL_SEGMENT
        self.held += length
        self.most = max(self.most, self.held)
        return self._made(_Block(length))

    def _split(self, pool: _Pool, block: _Block, size: int) -> None:
        rest = self._made(_Block(block.size - size, True, block, block.after))
        if block.after:
            block.after.before = rest
        block.size, block.after = size, rest
        pool.add(rest)

    def _made(self, block: _Block) -> _Block:
        self._kept.append(block)
        return block


class Heap:
    """A heap as glibc has it where nothing is given back to the system. most: its length in bytes."""

    _HEADER, _UNIT = 16, 64

    def __init__(self) -> None:
        self.most = 0
        self._pool = _Pool(64)
        self._kept: list[_Block] = []
        self._last: _Block | None = None

    def take(self, size: int) -> _Block:
        size = -(-(size + self._HEADER) // self._UNIT) * self._UNIT
        block = self._pool.best(size)
        if block is None:
            return self._grown(size)
        self._pool.remove(block)
        block.free = False
        if block.size - size >= self._pool.least_left:
            rest = _Block(block.size - size, True, block, block.after)
            self._kept.append(rest)
            if block.after:
                block.after.before = rest
            else:
                self._last = rest
            block.size, block.after = size, rest
            self._pool.add(rest)
        return block

    def give(self, block: _Block) -> None:
        for other in (block.before, block.after):
            if other is None or not other.free:
                continue
            self._pool.remove(other)
            block.size += other.size
            if other is block.before:
                block.before = other.before
                if block.before:
                    block.before.after = block
            else:
                block.after = other.after
                if block.after:
                    block.after.before = block
                else:
                    self._last = block
        block.free = True
        self._pool.add(block)

    def _grown(self, size: int) -> _Block:
        last = self._last
        if last is not None and last.free:
            self._pool.remove(last)
            self.most += size - last.size
            last.size, last.free = size, False
            return last
        block = _Block(size, False, last)
        self._kept.append(block)
        if last:
            last.after = block
        self._last = block
        self.most += size
        return block


def held(log: Log, begin: int, on_card: bool) -> int:
    """The most bytes an allocator holds for a log. begin: moves before the step, of which what is left counts as laid down in order."""
    allocator: Card | Heap = Card() if on_card else Heap()
    blocks: dict[int, object] = {}
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
            allocator.give(blocks.pop(-number))  # type: ignore[arg-type]
    return allocator.most
