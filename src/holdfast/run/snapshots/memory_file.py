"""The shared-memory file of one rank: pulse and newest snapshots, readable after its writer's death. Bytes only, no tensors.

Layout: a header page, a pulse page, then slots. A slot is a header page, an area for JSON, and two safetensors images (the
artifact's weights and the optimizer's state). There are three slots, so that the newest snapshot and one that is being made
durable stay untouched while the next is written; the third may get its room when it is first needed. A slot counts when its
header and its payload match their checksums.
"""

from __future__ import annotations

import functools
import mmap
import os
import platform
import secrets
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import orjson

from holdfast.base.files import Json
from holdfast.base.safe_open import open_own
from holdfast.run.snapshots.bell import notify
from holdfast.run.snapshots.pulse_page import MADE_AT, MADE_BYTES, PAGE, PulsePage

META_BYTES = 1 << 18
SLOTS = 3
_MAGIC = b"HOLDFAST"
_VERSION = 1
_FILE = struct.Struct("<8sIIQQ")  # magic, version, slots, artifact bytes, state bytes
_OWNER_BYTES = PAGE - _FILE.size - 1
_SLOT = struct.Struct("<QQQIII")  # sequence (odd: being written), generation, step, payload checksum, meta bytes, header checksum
_PIN_AT = 128


@dataclass(frozen=True)
class SlotHeader:
    index: int
    sequence: int
    generation: int
    step: int
    checksum: int
    meta_bytes: int


@dataclass(frozen=True)
class Snapshot:
    """The complete state after `step`: JSON facts and two safetensors images."""

    step: int
    generation: int
    meta: Json
    artifact: bytes
    state: bytes


def _up(size: int) -> int:
    return -(-size // PAGE) * PAGE


class MemoryFile(PulsePage):
    """One mmapped file. One process writes slots and pulse; any number read; the checkpoint writer clears pins."""

    def __init__(self, path: Path, memory: mmap.mmap, artifact_bytes: int, state_bytes: int) -> None:
        self.path = path
        self._room_for_all = False  # as far as this process knows
        self.memory = memory
        self.artifact_bytes = artifact_bytes
        self.state_bytes = state_bytes
        self._slot_bytes = slot_bytes(artifact_bytes, state_bytes)

    @classmethod
    def create(cls, path: Path, owner: Path, artifact_bytes: int, state_bytes: int, spare: bool = True) -> MemoryFile:
        """Open `path` when it has exactly this layout (its snapshots stay), else make it anew for the run `owner`, allocated.

        Raises OSError (ENOSPC) when the file system has not the room left: better now than a SIGBUS later. spare: room for the third slot
        is taken now, too, not when it is needed.
        """
        existing = cls.open(path)
        if existing and (existing.artifact_bytes, existing.state_bytes) == (artifact_bytes, state_bytes):
            return existing
        path.parent.mkdir(parents=not path.is_relative_to(owner), exist_ok=True)  # a run folder that is gone stays so
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.{os.getpid()}.tmp")
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            size, slot = file_bytes(artifact_bytes, state_bytes), slot_bytes(artifact_bytes, state_bytes)
            os.ftruncate(descriptor, size)
            _allocate(descriptor, 0, size if spare else size - slot + PAGE)  # its header is read at any time
            os.pwrite(descriptor, _FILE.pack(_MAGIC, _VERSION, SLOTS, artifact_bytes, state_bytes) + os.fsencode(owner)[:_OWNER_BYTES], 0)
            os.pwrite(descriptor, _surroundings(), MADE_AT)
            temporary.replace(path)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            error.filename = str(path)
            raise
        finally:
            os.close(descriptor)
        made = cls.open(path)
        assert made is not None
        made._room_for_all = spare
        return made

    @classmethod
    def open(cls, path: Path) -> MemoryFile | None:
        """Map an existing file, or None when there is none, it is not one of ours, or others than this user may write it."""
        try:
            descriptor = open_own(path, os.O_RDWR)
        except OSError:
            return None
        try:
            head = os.pread(descriptor, _FILE.size, 0)
            if len(head) < _FILE.size:
                return None
            magic, version, slots, artifact_bytes, state_bytes = _FILE.unpack(head)
            size = file_bytes(artifact_bytes, state_bytes)
            if (magic, version, slots) != (_MAGIC, _VERSION, SLOTS) or os.fstat(descriptor).st_size != size:
                return None
            return cls(path, mmap.mmap(descriptor, size), artifact_bytes, state_bytes)
        finally:
            os.close(descriptor)

    def __enter__(self) -> MemoryFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.memory.close()

    def renew(self, owner: Path) -> None:
        """Make the file again, with all it held, after its name was taken away. Raises OSError where there is no room any more."""
        last = self._at(SLOTS - 1)
        spare = self._room_for_all or self.header(SLOTS - 1) is not None
        made = MemoryFile.create(self.path, owner, self.artifact_bytes, self.state_bytes, spare)
        end = len(self.memory) if spare else last
        made.memory[:end] = self.memory[:end]
        self.memory, self._room_for_all = made.memory, made._room_for_all

    # -- snapshots: writing

    def free_slot(self) -> int | None:
        """Return the slot to write next: never pinned, nor the newest, the third where there is no other; None where that has no room."""
        newest = self.newest_header()
        taken = {newest.index} if newest else set()
        slot = min(index for index in range(SLOTS) if index not in taken and not self.pinned(index))
        return slot if slot < SLOTS - 1 or self._has_room_for_all() else None

    def _has_room_for_all(self) -> bool:
        """Take the third slot's room, unless it has that."""
        if not self._room_for_all:
            try:
                with os.fdopen(open_own(self.path, os.O_RDWR), "rb+") as handle:
                    _allocate(handle.fileno(), self._at(SLOTS - 1), self._slot_bytes)
            except OSError:  # no room, or the file's name was taken away, and the next commit makes it again
                return False
            self._room_for_all = True
        return True

    def begin(self, index: int) -> None:
        """Mark a slot as being written; until `seal` no reader takes it."""
        at = self._at(index)
        self.memory[at : at + 8] = struct.pack("<Q", self._sequence(index) | 1)

    def payload_offsets(self, index: int) -> tuple[int, int]:
        """Return where the artifact's and the state's image of a slot begin in the file, in bytes."""
        start = self._at(index) + PAGE + META_BYTES
        return start, start + _up(self.artifact_bytes)

    def seal(self, index: int, step: int, generation: int, meta: Json, pin: bool) -> None:
        """Make a written slot count, as the newest when its generation is. Raises ValueError when `meta` does not fit."""
        packed = orjson.dumps(meta)
        if len(packed) > META_BYTES:
            raise ValueError(f"{len(packed)} bytes of facts do not fit into {META_BYTES}")
        at = self._at(index)
        self.memory[at + PAGE : at + PAGE + len(packed)] = packed
        sequence = (self._sequence(index) | 1) + 1
        checksum = self._payload_checksum(index, len(packed))
        header = _SLOT.pack(sequence, generation, step, checksum, len(packed), 0)[:-4]
        self.memory[at + _PIN_AT : at + _PIN_AT + 4] = struct.pack("<I", int(pin))
        self.memory[at : at + _SLOT.size] = header + struct.pack("<I", zlib.crc32(header))
        if pin:
            notify(self.path)

    # -- snapshots: reading

    def header(self, index: int) -> SlotHeader | None:
        """Return the header of a slot, or None when it is empty, being written or damaged."""
        at = self._at(index)
        raw = self.memory[at : at + _SLOT.size]
        sequence, generation, step, checksum, meta_bytes, header_checksum = _SLOT.unpack(raw)
        if sequence % 2 or sequence == 0 or zlib.crc32(raw[:-4]) != header_checksum or meta_bytes > META_BYTES:
            return None
        return SlotHeader(index, sequence, generation, step, checksum, meta_bytes)

    def newest_header(self) -> SlotHeader | None:
        return max((header for index in range(SLOTS) if (header := self.header(index))), key=lambda h: h.generation, default=None)

    def read(self, header: SlotHeader) -> Snapshot | None:
        """Copy a snapshot out, or None when it was overwritten meanwhile or its checksum does not match."""
        seen = self.view(header)
        if seen is None:
            return None
        meta, *images = seen
        artifact, state = map(bytes, images)
        return Snapshot(header.step, header.generation, meta, artifact, state) if self.header(header.index) == header else None

    def view(self, header: SlotHeader) -> tuple[Json, memoryview, memoryview] | None:
        """Return (meta, artifact, state) of a snapshot as they lie in the file, which has to stay open; None where `read` has none."""
        at = self._at(header.index)
        meta = self.memory[at + PAGE : at + PAGE + header.meta_bytes]
        artifact_at, state_at = self.payload_offsets(header.index)
        with memoryview(self.memory) as whole:
            artifact, state = whole[artifact_at : artifact_at + self.artifact_bytes], whole[state_at : state_at + self.state_bytes]
        if self.header(header.index) != header or zlib.crc32(state, zlib.crc32(artifact, zlib.crc32(meta))) != header.checksum:
            artifact.release()
            state.release()
            return None
        return orjson.loads(meta), artifact, state

    def meta(self, header: SlotHeader) -> Json:
        """Read what stands beside a snapshot's tensors, without a look at these; empty where it cannot be read."""
        at = self._at(header.index) + PAGE
        try:
            found = orjson.loads(self.memory[at : at + header.meta_bytes])
        except orjson.JSONDecodeError:
            return {}
        return found if isinstance(found, dict) else {}

    def newest(self) -> Snapshot | None:
        """Return the newest snapshot that is whole; a damaged one is passed over."""
        headers = [header for index in range(SLOTS) if (header := self.header(index))]
        for header in sorted(headers, key=lambda h: h.generation, reverse=True):
            if snapshot := self.read(header):
                return snapshot
        return None

    # -- pins: a snapshot that is to become a durable checkpoint

    def pinned(self, index: int) -> bool:
        at = self._at(index) + _PIN_AT
        return self.memory[at : at + 4] != b"\0\0\0\0"

    def pinned_headers(self) -> list[SlotHeader]:
        """Return the snapshots waiting to be made durable, oldest first. Pins of damaged slots are not among them."""
        headers = [header for index in range(SLOTS) if self.pinned(index) and (header := self.header(index))]
        return sorted(headers, key=lambda h: h.generation)

    def pin(self, index: int) -> None:
        at = self._at(index) + _PIN_AT
        self.memory[at : at + 4] = b"\1\0\0\0"
        notify(self.path)

    def unpin(self, index: int) -> None:
        at = self._at(index) + _PIN_AT
        self.memory[at : at + 4] = b"\0\0\0\0"

    def unpin_damaged(self) -> None:
        """Clear pins of slots that no longer hold a snapshot. Only while nothing writes slots."""
        for index in range(SLOTS):
            if self.pinned(index) and self.header(index) is None:
                self.unpin(index)

    def forget_after(self, step: int) -> None:
        """Clear the slots of later steps, also on the disk where the file lies on one. Only while nothing writes or saves slots."""
        later = [header for index in range(SLOTS) if (header := self.header(index)) and header.step > step]
        for header in later:
            self.unpin(header.index)
            self.begin(header.index)
        if later:
            self.memory.flush()

    def flush(self, index: int) -> None:
        """Wait until a slot is on the disk, where the file lies on one, and the first pages, without which no slot can be read."""
        self.memory.flush(0, self._at(index) + self._slot_bytes)

    # -- arithmetic

    def _at(self, index: int) -> int:
        return 2 * PAGE + index * self._slot_bytes

    def _sequence(self, index: int) -> int:
        sequence: int = struct.unpack_from("<Q", self.memory, self._at(index))[0]
        return sequence

    def _payload_checksum(self, index: int, meta_bytes: int) -> int:
        at = self._at(index) + PAGE
        artifact_at, state_at = self.payload_offsets(index)
        with memoryview(self.memory) as view:
            checksum = zlib.crc32(view[at : at + meta_bytes])
            checksum = zlib.crc32(view[artifact_at : artifact_at + self.artifact_bytes], checksum)
            return zlib.crc32(view[state_at : state_at + self.state_bytes], checksum)


def _allocate(descriptor: int, start: int, size: int) -> None:
    """Reserve every byte of a part of the file now, where the system can (macOS cannot)."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, start, size)


def slot_bytes(artifact_bytes: int, state_bytes: int) -> int:
    return PAGE + META_BYTES + _up(artifact_bytes) + _up(state_bytes)


def file_bytes(artifact_bytes: int, state_bytes: int) -> int:
    """Return the size of the whole file in bytes."""
    return 2 * PAGE + SLOTS * slot_bytes(artifact_bytes, state_bytes)


def owner_of(file: Path) -> tuple[Path, int] | None:
    """Return (run folder of a memory file of this user, its bytes); None where its folder was seen otherwise than from here."""
    try:
        with os.fdopen(open_own(file, os.O_RDONLY), "rb") as handle:
            pages, size = handle.read(2 * PAGE), os.fstat(handle.fileno()).st_size
    except OSError:  # another user's, or gone meanwhile
        return None
    seen = pages[MADE_AT : MADE_AT + MADE_BYTES].rstrip(b"\0")
    if not pages.startswith(_MAGIC) or seen != _surroundings():
        return None
    return Path(os.fsdecode(pages[_FILE.size : PAGE].rstrip(b"\0"))), size


@functools.cache
def _surroundings() -> bytes:
    """Return what names the file systems that this process sees: its mount namespace, which is a container's own, and the hostname."""
    try:
        space = Path("/proc/self/ns/mnt").readlink()
    except OSError:  # macOS
        space = Path("-")
    root = Path("/").stat()
    return f"{space} {platform.node()} {root.st_dev}:{root.st_ino}".encode()[:MADE_BYTES]
