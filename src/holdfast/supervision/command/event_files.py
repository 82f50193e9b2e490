"""The newest step in a TensorBoard event file, without TensorBoard: records of a length, a checksum and a protocol buffer."""

from __future__ import annotations

import contextlib
from pathlib import Path

from holdfast.supervision.foreign_checkpoints.newest import MOST_STEPS

_HEAD, _FOOT = 12, 4  # length and its checksum, the record's checksum
_MOST = 1 << 24  # bytes of new records that are looked at together
_STEP_TAG = 0x10  # field 2 of Event, a varint: tensorflow/core/util/event.proto


class EventFile:
    """The newest event file below a folder, read on from where it was."""

    def __init__(self, place: Path, since: float) -> None:
        self.place, self.since = place, since
        self.file: Path | None = None
        self.step: int | None = None
        self._at = 0

    def look(self) -> int | None:
        """Return the newest step so far; None where none was written."""
        with contextlib.suppress(OSError):
            files = [(file.stat().st_mtime, file) for file in self.place.rglob("events.out.tfevents.*")]
            fresh = [one for one in files if one[0] >= self.since]
            if fresh and (newest := max(fresh)[1]) != self.file:
                self.file, self._at = newest, 0
            if self.file is not None:
                with self.file.open("rb") as handle:
                    handle.seek(self._at)
                    self._read(handle.read(_MOST))
        return self.step

    def _read(self, data: bytes) -> None:
        at = 0
        while at + _HEAD <= len(data):
            size = int.from_bytes(data[at : at + 8], "little")
            if at + _HEAD + size + _FOOT > len(data):
                break
            step = step_of(data[at + _HEAD : at + _HEAD + size])
            self.step = step if step is not None else self.step
            at += _HEAD + size + _FOOT
        self._at += at


def step_of(event: bytes) -> int | None:
    """Decode field 2 of an Event, after its wall time (field 1, 8 bytes); None where it has no step (a step of 0 is left out)."""
    at = 9 if event[:1] == b"\x09" else 0
    if event[at : at + 1] != bytes([_STEP_TAG]):
        return None
    value = shift = 0
    for byte in event[at + 1 : at + 11]:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value if value < MOST_STEPS else None
    return None
