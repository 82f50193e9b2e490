"""What comes out of reading: a row with its bytes and value, or a reject with the reason. Nouns only."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from holdfast.base.files import Json

LARGEST_ROW = 1 << 24  # bytes; a longer row is rejected, and only its start is kept
OTHER_SPLIT = "other_split"  # the reason of a row in a split that is not trained
_START_KEPT = 1 << 16
_SEPARATORS = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))


class Source(NamedTuple):
    """Where a row stood: file as given, line counted from 1 (the row's number in formats without lines, and in an array on one line)."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class RawRow(NamedTuple):
    """One row as it stood in the file; `value` is its JSON value, `mended` what reading had to change to get it: (reason, detail)."""

    source: Source
    raw: bytes
    value: Any
    mended: tuple[str, str] | None = None


@dataclass(frozen=True)
class Reject:
    """A row that is not trained on: reason is a short name that can be counted, detail says what and where."""

    source: Source
    reason: str
    detail: str
    raw: bytes

    def as_json(self) -> Json:
        entry: Json = {"file": self.source.file, "line": self.source.line, "reason": self.reason, "detail": self.detail}
        return entry | raw_json(self.raw)


def raw_json(raw: bytes) -> Json:
    """Return a row's bytes as they go into a journal: text, or base64 where they are not UTF-8."""
    try:
        return {"raw": raw.decode()}
    except UnicodeDecodeError:
        return {"raw_base64": base64.b64encode(raw).decode()}


def json_of(value: Any) -> bytes:
    """Encode one line of JSON with whole numbers of any size. Raises ValueError for half of a surrogate pair, or RecursionError."""
    return json.dumps(value, ensure_ascii=False).encode()


def json_line(entry: Json) -> bytes:
    """Encode one line of a journal of rows; every character but \\n that a reader may take for the end of a line is escaped."""
    try:
        line = orjson.dumps(entry, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # a whole number beyond 64 bits
        line = json_of(entry) + b"\n"
    for separator, escape in _SEPARATORS:
        line = line.replace(separator, escape)
    return line


class UnparsedRow(NamedTuple):
    """One row before parsing: line, bytes, (reason, detail) where it cannot be read, and its JSON where the file is not of JSON."""

    line: int
    raw: bytes
    damage: tuple[str, str] | None = None
    json: bytes | None = None


def overlong(line: int, start: bytes, size: int) -> UnparsedRow:
    """Return the damaged row that stands for one that is too large."""
    detail = f"the row has {size:,} bytes, {LARGEST_ROW:,} at most are read; its first {_START_KEPT:,} are kept here"
    return UnparsedRow(line, start[:_START_KEPT], ("too_large", detail))
