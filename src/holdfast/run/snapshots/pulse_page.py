"""The second page of a memory file: what its writer is doing now, and a few numbers of the run. No snapshots.

It begins with the pulse, JSON behind a sequence number that is odd while it is replaced; the numbers stand at its end.
"""

from __future__ import annotations

import mmap
import struct

import orjson

from holdfast.base.files import Json

PAGE = 4096
_PULSE = struct.Struct("<QI")  # sequence, bytes
_COUNT_AT = 2 * PAGE - 8  # micro-batches of the run so far
_SAVED_AT = 2 * PAGE - 16  # seconds the writer's last save took
_UNWRITTEN_AT = 2 * PAGE - 24  # committed steps whose row the disk has not taken yet
MADE_BYTES = 200  # by whom it was made: what names the file systems that the run folder is seen in
MADE_AT = _UNWRITTEN_AT - MADE_BYTES
_WORDS_BYTES = 24 + MADE_BYTES


class PulsePage:
    """The page in a file that is mapped. One process writes, any number read."""

    memory: mmap.mmap

    def beat(self, facts: Json) -> None:
        """Publish what the writer is doing now."""
        packed = orjson.dumps(facts)[: PAGE - _PULSE.size - _WORDS_BYTES]
        sequence = struct.unpack_from("<Q", self.memory, PAGE)[0] | 1
        self.memory[PAGE : PAGE + 8] = struct.pack("<Q", sequence)
        self.memory[PAGE + _PULSE.size : PAGE + _PULSE.size + len(packed)] = packed
        self.memory[PAGE : PAGE + _PULSE.size] = _PULSE.pack(sequence + 1, len(packed))

    def pulse(self) -> Json | None:
        """Return what the writer published last, or None when nothing was or it was just being replaced."""
        before = self.memory[PAGE : PAGE + _PULSE.size]
        sequence, size = _PULSE.unpack(before)
        packed = self.memory[PAGE + _PULSE.size : PAGE + _PULSE.size + size]
        if sequence == 0 or sequence % 2 or self.memory[PAGE : PAGE + _PULSE.size] != before:
            return None
        try:
            value: Json = orjson.loads(packed)
        except orjson.JSONDecodeError:
            return None
        return value

    def count_micro_batch(self) -> int:
        """Count one more micro-batch of the run, over all attempts and trials; return the new number."""
        count: int = struct.unpack_from("<Q", self.memory, _COUNT_AT)[0] + 1
        self.memory[_COUNT_AT : _COUNT_AT + 8] = struct.pack("<Q", count)
        return count

    @property
    def unwritten(self) -> int:
        """Committed steps whose row the disk has not taken yet; their rows are in the newest snapshot."""
        value: int = struct.unpack_from("<Q", self.memory, _UNWRITTEN_AT)[0]
        return value

    @unwritten.setter
    def unwritten(self, steps: int) -> None:
        self.memory[_UNWRITTEN_AT : _UNWRITTEN_AT + 8] = struct.pack("<Q", steps)

    @property
    def saved_s(self) -> float | None:
        """Seconds the last durable checkpoint took to write; None before the first."""
        value: float = struct.unpack_from("<d", self.memory, _SAVED_AT)[0]
        return value or None

    @saved_s.setter
    def saved_s(self, seconds: float) -> None:
        self.memory[_SAVED_AT : _SAVED_AT + 8] = struct.pack("<d", seconds)
