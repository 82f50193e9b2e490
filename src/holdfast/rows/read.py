"""Read rows from JSON Lines and JSON files, one by one, losing none: what cannot be parsed comes out as a reject with its bytes."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from holdfast.core.errors import BLOCKED, Stop
from holdfast.core.files import Json

_BOM = b"\xef\xbb\xbf"
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


def read_rows(file: str) -> Iterator[RawRow | Reject]:
    """Every row of `file`, in order; blank lines are not rows.

    Raises Stop(1) for what is no row file at all: empty, unreadable or binary.
    """
    head = _head(file)
    if _is_array(head):
        yield from _array_rows(file)
    else:
        yield from _line_rows(file)


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


def _line_rows(file: str) -> Iterator[RawRow | Reject]:
    with open(file, "rb") as handle:
        for number, line in enumerate(handle, 1):
            raw = line.rstrip(b"\r\n")
            if number == 1:
                raw = raw.removeprefix(_BOM)
            if raw.strip():
                yield _parse(Source(file, number), raw)


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


def _array_rows(file: str) -> Iterator[RawRow | Reject]:
    """Elements of one JSON array, with the line each begins on. After damage the rest of the file is one reject."""
    data = Path(file).read_bytes().removeprefix(_BOM)
    try:
        text = data.decode()
    except UnicodeDecodeError as damage:
        yield Reject(Source(file, data[: damage.start].count(b"\n") + 1), "bad_encoding", f"not UTF-8 at offset {damage.start}", data)
        return
    decoder = json.JSONDecoder()
    at, line, counted = _skip(text, text.index("[") + 1, " \t\r\n"), 1, 0
    while at < len(text) and text[at] != "]":
        line, counted = line + text.count("\n", counted, at), at
        source = Source(file, line)
        try:
            _, end = decoder.raw_decode(text, at)
        except (json.JSONDecodeError, RecursionError) as error:
            detail = f"{error}; nothing after this point of the array can be read"
            yield Reject(source, "parse_error", detail, text[at:].encode())
            return
        yield _parse(source, text[at:end].encode())
        at = _skip(text, end, " \t\r\n,")
    if at >= len(text):
        yield Reject(Source(file, line), "parse_error", "the array's closing bracket is missing: the file is cut off", b"")


def _skip(text: str, at: int, what: str) -> int:
    while at < len(text) and text[at] in what:
        at += 1
    return at
