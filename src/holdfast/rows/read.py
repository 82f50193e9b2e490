"""Read rows from JSON Lines and JSON files, one by one, losing none: what cannot be parsed comes out as a reject with its bytes."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import orjson

from holdfast.core.errors import BLOCKED, Stop
from holdfast.core.files import Json

_BOM = b"\xef\xbb\xbf"
_WINDOW = 1 << 20  # bytes of an array that are looked at together
_EXTENT = json.JSONDecoder(parse_int=len, parse_float=len)  # asked for the end of an element, not for its value
_MAGIC = {
    b"\x1f\x8b": "gzip data; unpack it first (gunzip)",
    b"\x28\xb5\x2f\xfd": "zstd data; unpack it first (unzstd)",
    b"PK\x03\x04": "a zip archive; unpack it first",
    b"PAR1": "a Parquet file; write it out as JSON Lines first",
    b"\xff\xfe": "UTF-16 text; save it as UTF-8 (iconv -f UTF-16 -t UTF-8)",
    b"\xfe\xff": "UTF-16 text; save it as UTF-8 (iconv -f UTF-16 -t UTF-8)",
}


@dataclass(frozen=True)
class Source:
    """Where a row stood: file as given, line counted from 1."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class RawRow:
    """One row as it stood in the file; `value` is what was parsed from `raw`."""

    source: Source
    raw: bytes
    value: Any


@dataclass(frozen=True)
class Reject:
    """A row that is not trained on: reason is a short name that can be counted, detail says what and where."""

    source: Source
    reason: str
    detail: str
    raw: bytes

    def as_json(self) -> Json:
        entry: Json = {"file": self.source.file, "line": self.source.line, "reason": self.reason, "detail": self.detail}
        try:
            return entry | {"raw": self.raw.decode()}
        except UnicodeDecodeError:
            return entry | {"raw_base64": base64.b64encode(self.raw).decode()}


class Unparsed(NamedTuple):
    """One row before parsing: its line, its bytes, and (reason, detail) where the file cannot be read past it."""

    line: int
    raw: bytes
    damage: tuple[str, str] | None = None


def read_rows(file: str) -> Iterator[RawRow | Reject]:
    """Every row of `file`, in order; blank lines are not rows.

    Raises Stop(1) for what is no row file at all (empty, unreadable or binary) and for a file that changes meanwhile.
    """
    for row in read_unparsed(file):
        yield parse(file, row)


def read_unparsed(file: str) -> Iterator[Unparsed]:
    """Every row of `file` as it stands there; otherwise like read_rows. Holds one row at a time, or a window of an array."""
    head = _head(file)
    with open(file, "rb") as handle:
        before = os.fstat(handle.fileno())
        yield from _Array(handle).rows() if _is_array(head) else _lines(handle)
        after = os.fstat(handle.fileno())
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        sizes = f"{before.st_size:,} bytes before, {after.st_size:,} now"
        raise Stop(BLOCKED, f"{file} changed while it was read ({sizes})", "start again once nothing writes to it any more")


def parse(file: str, row: Unparsed) -> RawRow | Reject:
    """The row's JSON value, or why there is none."""
    source = Source(file, row.line)
    return Reject(source, *row.damage, row.raw) if row.damage else _parse(source, row.raw)


def _head(file: str) -> bytes:
    try:
        with open(file, "rb") as handle:
            head = handle.read(1 << 16)
    except IsADirectoryError:
        raise Stop(BLOCKED, f"{file} is a folder", "name the files in it under data.files") from None
    except OSError as error:
        raise Stop(BLOCKED, f"{file} cannot be read: {error.strerror}", f"check it with: ls -l {file}") from None
    if not head.removeprefix(_BOM).strip():
        raise Stop(BLOCKED, f"{file} is empty ({Path(file).stat().st_size} bytes)", "give a file with one JSON object a line")
    for magic, meaning in _MAGIC.items():
        if head.startswith(magic):
            raise Stop(BLOCKED, f"{file} is {meaning.split(';')[0]}, not JSON text", meaning.split("; ")[-1])
    if b"\0" in head:
        at = head.index(b"\0")
        raise Stop(BLOCKED, f"{file} is binary: a NUL byte at offset {at:,}", "data files are JSON Lines or JSON text")
    return head


def _is_array(head: bytes) -> bool:
    """Whether the file is one JSON array. A row file whose first row is an array is not: it goes on after the line's bracket."""
    text = head.removeprefix(_BOM).lstrip()
    if not text.startswith(b"["):
        return False
    first_line = text.split(b"\n", 1)[0].strip()
    return not first_line.endswith(b"]") or b"\n" not in text.rstrip() or first_line == b"[]"


def _lines(handle: BinaryIO) -> Iterator[Unparsed]:
    for number, line in enumerate(handle, 1):
        raw = line.rstrip(b"\r\n")
        if number == 1:
            raw = raw.removeprefix(_BOM)
        if raw.strip():
            yield Unparsed(number, raw)


def _parse(source: Source, raw: bytes) -> RawRow | Reject:
    try:
        return RawRow(source, raw, orjson.loads(raw))
    except orjson.JSONDecodeError as error:
        try:
            raw.decode()
        except UnicodeDecodeError as damage:
            return Reject(source, "bad_encoding", f"not UTF-8: byte 0x{raw[damage.start]:02x} at offset {damage.start}", raw)
        return Reject(source, "parse_error", f"{error} (the row has {len(raw)} bytes){_hint(raw)}", raw)


def _hint(raw: bytes) -> str:
    text = raw.strip()
    if not text.startswith(b"{"):
        return ""
    if text.startswith((b"{'", b"{ '")):
        return "; single quotes are not JSON"
    if text.endswith((b",}", b", }")):
        return "; a comma before the closing bracket"
    return "" if text.endswith(b"}") else "; the row looks cut off"


class _Array:
    """Elements of one JSON array, with the line each begins on. After damage the rest of the file is one reject.

    Bytes are looked at as Latin-1, one character each: where an element ends does not depend on the letters in it.
    """

    def __init__(self, handle: BinaryIO) -> None:
        self.handle = handle
        self.text = handle.read(_WINDOW).removeprefix(_BOM).decode("latin-1")
        self.at, self.line, self.ended = 0, 1, False
        self._move(self.text.index("[") + 1)

    def rows(self) -> Iterator[Unparsed]:
        between = " \t\r\n"
        while not self._cut_off(between):
            if self.text[self.at] == "]":
                return
            end = self._element_end()
            if isinstance(end, str):
                rest = self.text[self.at :].encode("latin-1") + self.handle.read()
                yield Unparsed(self.line, rest, ("parse_error", f"{end}; nothing after this point of the array can be read"))
                return
            yield Unparsed(self.line, self.text[self.at : end].encode("latin-1"))
            self._move(end)
            between = " \t\r\n,"
        yield Unparsed(self.line, b"", ("parse_error", "the array's closing bracket is missing: the file is cut off"))

    def _cut_off(self, between: str) -> bool:
        """Move to the next character that is not one of `between`; whether the file ends before it."""
        while True:
            at = self.at
            while at < len(self.text) and self.text[at] in between:
                at += 1
            self._move(at)
            if at < len(self.text):
                return False
            if self.ended:
                return True
            self._grow()

    def _element_end(self) -> int | str:
        """Where the element at hand ends, or what is wrong with it. At the window's end only a longer window can tell."""
        while True:
            wrong = ""
            try:
                _, end = _EXTENT.raw_decode(self.text, self.at)
            except json.JSONDecodeError as error:
                wrong = f"{error.msg} in line {self.line + self.text.count(chr(10), self.at, error.pos)}"
            except RecursionError:
                return "nested too deeply"
            if self.ended or (not wrong and end + len("e+") < len(self.text)):
                return wrong or end
            self._grow()

    def _move(self, to: int) -> None:
        self.line += self.text.count("\n", self.at, to)
        self.at = to

    def _grow(self) -> None:
        """Read on, twice as far for an element that does not fit; what lies behind is dropped."""
        kept = self.text[self.at :]
        fresh = self.handle.read(max(_WINDOW, len(kept)))
        self.text, self.at, self.ended = kept + fresh.decode("latin-1"), 0, not fresh
