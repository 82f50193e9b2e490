"""A file in memory that holds the newest state of a training process, and outlives it. Two slots: one is whole at any moment.

    header (one page): JSON, and at fixed places, per slot, its sequence number and the length of its facts
    slot: the bytes of all tensors, then the facts (pickled)

A slot's number is written last, after 0 was written first, so a death in between leaves the other slot. Nothing needs flushing:
what a killed process wrote to shared pages stays.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from pathlib import Path

PAGE = 4096
_FORMAT = "holdfast-command-1"
_NUMBERS = (PAGE - 64, PAGE - 32)  # of the slots
_ENTRY = struct.Struct("<QQ")


class SharedState:
    """room: bytes of tensors in a slot; facts_room: bytes kept for the facts."""

    def __init__(self, path: Path, run: str, room: int, facts_room: int) -> None:
        """Make the file anew. Raises OSError where there is no room."""
        self._new = path.with_suffix(".new")  # until a slot of it is whole, the file of the process before stays
        self._new.unlink(missing_ok=True)
        self.path, self.room, self.facts_room = path, room, facts_room
        size = PAGE + 2 * (room + facts_room)
        descriptor = os.open(self._new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)  # a page that cannot be had later would be a SIGBUS
            self.memory = mmap.mmap(descriptor, size)
        except OSError:
            self._new.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
        header = json.dumps({"format": _FORMAT, "run": run, "room": room, "facts_room": facts_room}).encode()
        self.memory[: len(header)] = header
        self.count = 0

    def slot(self) -> tuple[int, int]:
        """(which slot is to be written next, where its tensors begin); from now on it holds nothing whole."""
        at = self.count % 2
        _ENTRY.pack_into(self.memory, _NUMBERS[at], 0, 0)
        return at, PAGE + at * (self.room + self.facts_room)

    def seal(self, at: int, facts: bytes) -> None:
        """The slot is whole. Raises ValueError where the facts are too long."""
        if len(facts) > self.facts_room:
            raise ValueError(f"{len(facts)} bytes of facts")
        begin = PAGE + at * (self.room + self.facts_room) + self.room
        self.memory[begin : begin + len(facts)] = facts
        self.count += 1
        _ENTRY.pack_into(self.memory, _NUMBERS[at], self.count, len(facts))
        if self.count == 1:
            self._new.replace(self.path)


def newest(path: Path) -> tuple[memoryview, bytes] | None:
    """(tensors, facts) of the newest whole slot; None where there is none. Raises OSError, ValueError."""
    if path.stat().st_uid != os.geteuid():
        raise PermissionError(f"{path} is another user's")
    with path.open("rb") as handle:
        memory = memoryview(mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ))
    head = json.loads(bytes(memory[:PAGE]).partition(b"\0")[0])
    slots = [(*_ENTRY.unpack_from(memory, place), at) for at, place in enumerate(_NUMBERS)]
    number, length, at = max(slots)
    if head.get("format") != _FORMAT or not number:
        return None
    begin = PAGE + at * (head["room"] + head["facts_room"])
    end = begin + head["room"]
    return memory[begin:end], bytes(memory[end : end + length])
