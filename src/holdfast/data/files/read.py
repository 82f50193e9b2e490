"""Read the rows of a file one by one, whatever its form, losing none: what cannot be parsed comes out as a reject with its bytes.

Constant memory: one row, or a window of a stream, is held at a time.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

import orjson

from holdfast.base.errors import BLOCKED, Stop
from holdfast.data.files.code_pages import told
from holdfast.data.files.columns import read_columns
from holdfast.data.files.form import FileForm, form_of, records_begin
from holdfast.data.files.json_stream import JsonStream
from holdfast.data.files.raw_row import LARGEST_ROW, RawRow, Reject, Source, UnparsedRow, json_of, overlong
from holdfast.data.files.record_stream import RecordStream
from holdfast.data.files.stream import FileHead, from_latin_1, open_stream
from holdfast.data.files.tables import read_csv
from holdfast.row_sources.splits import judges

_CHUNK = 1 << 18  # bytes of lines that are read together
_MANY_DIGITS = re.compile(rb"\d{19}")
_NEXT_OBJECT = re.compile(rb'\}[ \t]*\{[ \t]*["}]')


def read_rows(file: str) -> Iterator[RawRow | Reject]:
    """Yield every row of `file`, in order; blank lines are not rows.

    Raises Stop(1) for a file that cannot be opened and for one that changes meanwhile.
    """
    for row in read_unparsed(file):
        yield parse(file, row)


def read_unparsed(file: str) -> Iterator[UnparsedRow]:
    """Yield every row of `file` as it stands there; otherwise like read_rows."""
    form = form_of(file)
    with open(file, "rb") as handle:
        before = os.fstat(handle.fileno())
        yield from read_columns(file, form.kind) if form.kind in ("parquet", "arrow") else _stream(handle, form)
        after = os.fstat(handle.fileno())
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        sizes = f"{before.st_size:,} bytes before, {after.st_size:,} now"
        raise Stop(BLOCKED, f"{file} changed while it was read ({sizes})", "start again once nothing writes to it any more")


def _stream(handle: BinaryIO, form: FileForm) -> Iterator[UnparsedRow]:
    if form.kind == "none":
        yield UnparsedRow(1, form.head.text[:64], ("not_rows", f"the file is {form.what} (its first bytes are kept here)"))
        return
    by_row = form.head.encoding == "latin-1" and form.kind in (
        "lines",
        "array",
        "values",
        "records",
    )  # so that a row's bytes stay as they are
    stream, guarded = open_stream(handle, form.head._replace(encoding="") if by_row else form.head)
    row: UnparsedRow | None = None
    if form.kind == "records":
        rows = _records(handle, stream, form.head._replace(encoding="") if by_row else form.head)
    elif form.kind in ("array", "values"):
        rows = JsonStream(stream, form.kind == "array").rows()
    elif form.kind == "csv":
        rows = read_csv(stream, form.head.text)
    else:
        rows = _lines(stream, form.kind == "text")
    for row in rows:
        yield row if not by_row or row.damage or row.raw.isascii() else row._replace(json=from_latin_1(row.raw))
    if guarded.damage:
        yield UnparsedRow(
            row.line + 1 if row else 1, b"", ("damaged_file", f"the {form.head.compression} data is damaged: {guarded.damage}")
        )


def _records(handle: BinaryIO, stream: BinaryIO, head: FileHead) -> Iterator[UnparsedRow]:
    """Yield the rows of all lists of one object; those of a test or validation split beside other lists are left out, each with the reason.

    stream: handle as it is read. Where the first list is such a split, the file is read once before, to know whether it is the only one.
    """
    begin, name = records_begin(head.text)
    if judges(name):
        first = RecordStream(stream, begin, name)
        for _ in first.rows():
            pass
        handle.seek(0)
        return RecordStream(open_stream(handle, head)[0], begin, name, first.names).rows()
    return RecordStream(stream, begin, name).rows()


def _lines(handle: BinaryIO, is_text: bool) -> Iterator[UnparsedRow]:
    number, rest, several, ended = 0, b"", False, False
    while not ended:
        data = handle.read(_CHUNK)
        ended = not data
        joint = rest[-2:] + data
        several = (several and rest != b"") or b"}{" in joint or b"} {" in joint  # whether a line may be of several objects
        lines = (rest + data).split(b"\n")
        rest = b"" if ended else lines.pop()
        for line in lines:
            number += 1
            raw = line.rstrip(b"\r\n")
            if len(line) > LARGEST_ROW:
                yield overlong(number, line, len(line) + (not ended))
            elif not raw or raw.isspace():
                continue
            elif is_text:
                yield _text(number, raw)
            elif several and _NEXT_OBJECT.search(raw) and len(parts := _several(raw)) > 1:
                yield from (UnparsedRow(number, part) for part in parts)
            else:
                yield UnparsedRow(number, raw)
        if len(rest) > LARGEST_ROW:
            number += 1
            skipped, behind = _skip_line(handle)
            yield overlong(number, rest, len(rest) + skipped)
            rest, several = behind, True


def _skip_line(handle: BinaryIO) -> tuple[int, bytes]:
    """Skip the rest of a line that is too long; return its number of bytes, and those read behind it."""
    size = 0
    while part := handle.read(_CHUNK):
        line, end, behind = part.partition(b"\n")
        size += len(line) + len(end)
        if end:
            return size, behind
    return size, b""


def _text(number: int, raw: bytes) -> UnparsedRow:
    try:
        return UnparsedRow(number, raw, None, orjson.dumps({"text": raw.decode()}))
    except UnicodeDecodeError:
        return UnparsedRow(number, raw)  # parsing says where


def _several(raw: bytes) -> list[bytes]:
    """Split a line that is made of objects alone into these; empty when it is not."""
    text, at, parts = raw.decode("latin-1"), 0, []
    try:
        while at < len(text):
            if text[at] != "{":
                return []
            _, end = _DECODER.raw_decode(text, at)
            parts.append(text[at:end].encode("latin-1"))
            at = next((n for n in range(end, len(text)) if text[n] not in " \t"), len(text))
    except (json.JSONDecodeError, RecursionError):
        return []
    return parts


def parse(file: str, row: UnparsedRow, first_line: int = 0) -> RawRow | Reject:
    """Return the row's JSON value, or why there is none; its line is counted from `first_line`."""
    source = Source(file, row.line - first_line)
    if row.damage:
        return Reject(source, *row.damage, row.raw)
    text = row.raw if row.json is None else row.json
    try:
        return RawRow(source, row.raw, orjson.loads(text))
    except orjson.JSONDecodeError as error:
        return _second_look(source, row.raw, text, error)


def _second_look(source: Source, raw: bytes, text: bytes, error: orjson.JSONDecodeError) -> RawRow | Reject:
    """Parse again what orjson refuses: bytes that are not UTF-8, literals of other programs; else reject it with a likely cause."""
    try:
        decoded = text.decode()
    except UnicodeDecodeError as damage:
        place = f"not UTF-8: byte 0x{text[damage.start]:02x} at offset {damage.start}"
        return Reject(source, "bad_encoding", place + told(text), raw)
    too_large = "parsed as double" in error.msg
    if too_large or "NaN" in decoded or "Infinity" in decoded:
        try:
            value = exact_value(decoded)
            json_of(value)
            return RawRow(source, raw, value, _NUMBER_TOO_LARGE if too_large else _NAN_LITERAL)
        except (ValueError, RecursionError):  # half of a surrogate pair cannot be written again
            pass
    return Reject(source, "parse_error", f"{error} (the row has {len(raw)} bytes){_hint(raw, error.msg)}", raw)


def _finite(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None


def _whole(text: str) -> int | None:
    return int(text) if len(text) < _MOST_DIGITS else None


_DECODER = json.JSONDecoder(parse_constant=lambda _: None, parse_float=_finite, parse_int=_whole)
_MOST_DIGITS = 4300  # Python reads no longer ones
_NAN_LITERAL = ("nan_literal", "NaN or Infinity, which JSON does not have, became null")
_NUMBER_TOO_LARGE = ("number_too_large", "a number beyond what programs can hold became null")


_STRANGE_STARTS = {
    b"<": "this looks like HTML, perhaps an error page that was saved as data",
    b"version https://git-lfs": "this is a pointer of Git LFS and not the data: fetch them with git lfs pull",
    b"\x1e": "a record separator (RFC 7464) stands before it: remove it with tr -d '\\036'",
    b"//": "comments are not JSON",
    b"#": "comments are not JSON",
}


def _hint(raw: bytes, wrong: str) -> str:
    text = raw.strip()
    for start, hint in _STRANGE_STARTS.items():
        if text.startswith(start):
            return f"; {hint}"
    if "control character" in wrong:
        return "; a tab, a line break or another control character stands in a text as it is, not as \\t, \\n or \\u0000"
    if b"\\ud" in text.lower() and text.endswith(b"}"):
        return "; half of a surrogate pair stands alone in it"
    if not text.startswith(b"{"):
        return ""
    if b"}\r{" in text:
        return "; its rows end with carriage returns alone: make them line feeds with tr '\\r' '\\n'"
    if text.endswith(b"},"):
        return "; a comma behind the row, as in an array without its brackets"
    if text.startswith((b"{'", b"{ '")):
        return "; single quotes are not JSON"
    if text.endswith((b",}", b", }")):
        return "; a comma before the closing bracket"
    if b"//" in text and text.endswith(b"}") and b"://" not in text:
        return "; comments are not JSON"
    if any(word in text for word in (b": None", b": True", b": False")):
        return "; None, True and False are Python, JSON has null, true and false"
    return "" if text.endswith(b"}") else "; the row looks cut off"


def line_of(row: UnparsedRow, value: Any) -> bytes:
    """Encode a row as a line of JSON: byte for byte as it stood where it was one."""
    text = row.json or row.raw
    if isinstance(value, list):  # a bare list of turns; as a line of its own the file's first one would be read as an array
        text = b'{"messages": ' + text.strip() + b"}"
    return text.strip().replace(b"\r", b" ").replace(b"\n", b" ") + b"\n"


def exact_value(text: str) -> Any:
    """Parse JSON with whole numbers of any size, and null for NaN and infinities. Raises ValueError or RecursionError."""
    return _DECODER.decode(text)


def with_all_digits(text: bytes, value: Any) -> Any:
    """Return the value of a row with whole numbers as they stand in its text: orjson rounds those beyond 64 bits.

    A line of a file of another form may be JSON, too: its value is another, and stays.
    """
    if not _MANY_DIGITS.search(text) or text.lstrip()[:1] not in (b"{", b"["):
        return value
    try:
        return exact_value(text.decode()) if orjson.loads(text) == value else value
    except (ValueError, RecursionError):
        return value
