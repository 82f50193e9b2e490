"""A file in memory that holds the newest state of a training process, and outlives it. Two slots: one is whole at any moment.

    header (one page): JSON, and at fixed places, per slot, its sequence number, the length of its facts, and the step it is of
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
from typing import Any

PAGE = 4096
_FORMAT = "holdfast-command-1"
_NUMBERS = (PAGE - 64, PAGE - 32)  # of the slots
_TRIES = 3  # at a slot that is written meanwhile
_ENTRY = struct.Struct("<QQQ")


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
        """Return (which slot is to be written next, where its tensors begin); from now on it holds nothing whole."""
        at = self.count % 2
        _ENTRY.pack_into(self.memory, _NUMBERS[at], 0, 0, 0)
        return at, PAGE + at * (self.room + self.facts_room)

    def seal(self, at: int, facts: bytes, step: int) -> None:
        """Mark the slot as whole, with the state after `step`. Raises ValueError where the facts are too long."""
        if len(facts) > self.facts_room:
            raise ValueError(f"{len(facts)} bytes of facts")
        begin = PAGE + at * (self.room + self.facts_room) + self.room
        self.memory[begin : begin + len(facts)] = facts
        self.count += 1
        _ENTRY.pack_into(self.memory, _NUMBERS[at], self.count, len(facts), step)
        if self.count == 1:
            self._new.replace(self.path)

    def take_back(self) -> None:
        """Mark the slot that was sealed last as not whole: the one before it is the newest then."""
        _ENTRY.pack_into(self.memory, _NUMBERS[(self.count - 1) % 2], 0, 0, 0)


def newest(path: Path) -> tuple[memoryview, bytes] | None:
    """Return (tensors, facts) of the newest whole slot; None where there is none. Raises OSError, ValueError."""
    memory, head = _mapped(path)
    number, length, _, at = _newest_slot(memory)
    if head.get("format") != _FORMAT or not number:
        return None
    begin = PAGE + at * (head["room"] + head["facts_room"])
    end = begin + head["room"]
    return memory[begin:end], bytes(memory[end : end + length])


def step_of(path: Path) -> int:
    """Return the step of the newest whole slot; 0 where there is none. Raises OSError, ValueError."""
    return _newest_slot(_mapped(path)[0])[2]


def run_of(path: Path) -> str:
    """Return the run folder whose state a file holds, as it was when the file was made. Raises OSError, ValueError."""
    return str(_mapped(path)[1]["run"])


def copied(path: Path) -> tuple[int, bytes, bytes] | None:
    """Copy (step, tensors, facts) of the newest whole slot while its process goes on; None where there is none, or it was too quick."""
    for _ in range(_TRIES):
        memory, _ = _mapped(path)
        slot, found = _newest_slot(memory), newest(path)
        if found is None:
            return None
        state = (slot[2], bytes(found[0]), found[1])
        if slot[0] and _ENTRY.unpack_from(memory, _NUMBERS[slot[3]]) == slot[:3] == _newest_slot(memory)[:3]:
            return state
    return None


def _mapped(path: Path) -> tuple[memoryview, dict[str, Any]]:
    if path.stat().st_uid != os.geteuid():
        raise PermissionError(f"{path} is another user's")
    with path.open("rb") as handle:
        memory = memoryview(mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ))
    return memory, json.loads(bytes(memory[:PAGE]).partition(b"\0")[0])


def _newest_slot(memory: memoryview) -> tuple[int, int, int, int]:
    """Find the newest slot: (sequence number, bytes of facts, step, which slot); its number is 0 where none is whole."""
    return max((*_ENTRY.unpack_from(memory, place), at) for at, place in enumerate(_NUMBERS))
