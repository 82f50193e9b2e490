"""Open a data file as a stream of UTF-8 bytes: decompressed, recoded, guarded. Looks at the first bytes; knows nothing of rows.

What a damaged stream still gives is given; `GuardedStream.damage` then says why it ended early. A disk that fails is no damage: OSError.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol, cast

import zstandard

from holdfast.base.errors import BLOCKED, Stop
from holdfast.base.file_errors import at_place, of_the_file
from holdfast.base.safe_open import open_regular
from holdfast.data.files.code_pages import UTF8_SEQUENCE, page_of

HEAD = 1 << 16  # bytes a file is judged by
_COMPRESSED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"\x50\x2a\x4d\x18": "zstd", b"BZh": "bz2"}  # 0x50: as pzstd begins
_BOMS = {  # the longer ones first: that of UTF-32 begins like that of UTF-16
    codecs.BOM_UTF32_LE: "utf-32-le",
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
_LATIN_IN_WORD = re.compile(rb"(?<=[A-Za-z ])[\xc0-\xd6\xd8-\xf6\xf8-\xff](?=[A-Za-z ,.])")
_LATIN_ENOUGH = 3  # letters that speak for Latin-1, with nothing against it
_CHUNK = 1 << 18
_PACKED_AT_ONCE = 1 << 10  # bytes of zstd or bz2; at worst those of zstd unpack to 32 MiB
_MOST_UNPACKED, _MOST_TIMES = 1 << 28, 300  # bytes from which on a file's are looked at, and how often its size; rows and logs reach 100


class FileHead(NamedTuple):
    """The first bytes of a file as UTF-8, and what had to be undone to get them ("" where nothing)."""

    text: bytes
    compression: str
    encoding: str


class _Source(Protocol):
    """A stream that gives what it has before it says what is wrong."""

    def read1(self, size: int, /) -> bytes: ...


class GuardedStream(io.RawIOBase):
    """A raw stream that ends where its source is damaged, and says so; recodes to UTF-8 on the way where `encoding` is another."""

    def __init__(self, source: _Source, encoding: str, file: object = None) -> None:
        """Take a source; file: what it is of, for an error of its disk."""
        self.damage, self._file = "", file
        self._source, self._rest = source, b""
        self._decoder: Any = None if encoding in ("", "utf-8-sig") else codecs.getincrementaldecoder(_decoding(encoding))(_errors(encoding))
        self._first = encoding != ""
        self._ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest and not self._ended:
            self._rest = self._next()
        taken = self._rest[: len(buffer)]
        self._rest = self._rest[len(taken) :]
        buffer[: len(taken)] = taken
        return len(taken)

    def _next(self) -> bytes:
        try:
            data = self._source.read1(_CHUNK)  # what a damaged stream still gives is not lost with what it does not
        except (EOFError, OSError, zlib.error, zstandard.ZstdError) as error:
            self.damage, data = str(of_the_file(error, self._file)), b""
        self._ended = not data
        if self._decoder:
            data = self._decoder.decode(data, self._ended).encode("utf-8", "surrogatepass")
        if self._first and data:
            self._first, data = False, data.removeprefix(codecs.BOM_UTF8)
        return data


def _decoding(encoding: str) -> str:
    return "cp1252" if encoding == "latin-1" else encoding


def _errors(encoding: str) -> str:
    return "replace" if encoding == "latin-1" else _HALVES_PASS


def _pass_or_replace(error: UnicodeError) -> tuple[str | bytes, int]:
    """Pass half of a surrogate pair on, for the row's parsing to find; replace what is cut off or beyond Unicode by U+FFFD."""
    try:
        return codecs.lookup_error("surrogatepass")(error)
    except UnicodeError:
        return codecs.lookup_error("replace")(error)


_HALVES_PASS = "holdfast-pass-or-replace"
codecs.register_error(_HALVES_PASS, _pass_or_replace)


def read_head(file: str) -> FileHead:
    """Detect how a file is written from its first bytes. Raises Stop(1) for what cannot be opened."""
    try:
        with open_regular(Path(file)) as handle:
            raw = handle.read(HEAD)
            compression = next((name for magic, name in _COMPRESSED.items() if raw.startswith(magic)), "")
            if compression:
                handle.seek(0)
                raw = io.BufferedReader(GuardedStream(_decompressed(handle, compression), ""), HEAD).read(HEAD)
    except IsADirectoryError:
        raise Stop(BLOCKED, f"{file} is a folder", "name the files in it under data.files") from None
    except OSError as error:
        raise at_place(error, file, "cannot be read", f"check it with: ls -l {file}") from None
    encoding = _encoding(raw)
    return FileHead(GuardedStream(io.BytesIO(raw), encoding).readall() or b"", compression, encoding)


def open_stream(handle: BinaryIO, head: FileHead) -> tuple[io.BufferedReader, GuardedStream]:
    """Open the rows' bytes of an opened file as `head` says they are written; return them and the guard that knows of damage.

    Reading from them raises OSError where the disk fails.
    """
    guarded = GuardedStream(_decompressed(handle, head.compression), head.encoding, getattr(handle, "name", None))
    return io.BufferedReader(guarded, _CHUNK), guarded


def _decompressed(handle: BinaryIO, compression: str) -> _Source:
    opened: Any = handle
    if compression == "gzip":
        opened = gzip.GzipFile(fileobj=handle)
    elif compression == "bz2":
        opened = _Frames(handle, bz2.BZ2Decompressor, _CHUNK)
    elif compression == "zstd":
        opened = _Frames(handle, _zstd_frame)
    return cast(_Source, opened) if opened is handle else _UnpackedStream(cast(_Source, opened), handle)


class _UnpackedStream:
    """What a compressed file holds, up to the size from which on it is no text that anybody has written."""

    def __init__(self, source: _Source, handle: BinaryIO) -> None:
        self._source, self._handle, self._given = source, handle, 0

    def read1(self, size: int) -> bytes:
        data = self._source.read1(size)
        self._given += len(data)
        if self._given > _MOST_UNPACKED and self._given > _MOST_TIMES * self._handle.tell():
            raise OSError(f"it unpacks to more than {_MOST_TIMES} times its size; {self._given >> 20:,} MiB of it were read")
        return data


class _Frames:
    """Frames of zstd or bz2, one after the other; unlike the libraries' readers it tells of what is none, and of an end inside of one.

    make: begins a frame. most: of what it unpacks at once, where it can be told to stop.
    """

    def __init__(self, handle: BinaryIO, make: Callable[[], Any], *most: int) -> None:
        self._handle, self._make, self._most = handle, make, most
        self._frame, self._begun, self._packed = make(), False, b""

    def read1(self, _: int) -> bytes:
        while True:
            if getattr(self._frame, "needs_input", True):
                self._packed = self._packed or self._handle.read(_PACKED_AT_ONCE)
                if not self._packed and self._begun:
                    raise EOFError("it ends in the middle")
                if not self._packed:
                    return b""
            packed, self._packed = self._packed, b""
            data: bytes = self._frame.decompress(packed, *self._most)
            self._begun = not self._frame.eof
            if self._frame.eof:
                self._packed, self._frame = self._frame.unused_data, self._make()
            if data:
                return data


def _zstd_frame() -> Any:
    return zstandard.ZstdDecompressor(max_window_size=1 << 27).decompressobj()


def _encoding(raw: bytes) -> str:
    """Detect the encoding to undo: by its mark, by NULs in every second byte, or by letters that only Latin-1 explains."""
    for mark, name in _BOMS.items():
        if raw.startswith(mark):
            return name
    sample = raw[:4096]
    if len(sample) >= 4 and not sample[1::2].strip(b"\0") and b"\0" not in sample[::2]:
        return "utf-16-le"
    if len(sample) >= 4 and not sample[::2].strip(b"\0") and b"\0" not in sample[1::2]:
        return "utf-16-be"
    if raw.isascii() or UTF8_SEQUENCE.search(raw):
        return ""
    return "latin-1" if len(_LATIN_IN_WORD.findall(raw)) >= _LATIN_ENOUGH and page_of(raw) == "cp1252" else ""


def from_latin_1(raw: bytes) -> bytes:
    """Convert bytes of Latin-1, or of Windows-1252 which holds it, to UTF-8."""
    return raw.decode("cp1252", "replace").encode()


def bare_suffix(file: str) -> str:
    """Return the suffix of a file's name without that of its compression: .csv of rows.csv.gz."""
    path = Path(file)
    return (path.with_suffix("") if path.suffix in (".gz", ".zst", ".bz2", ".zstd") else path).suffix.lower()
