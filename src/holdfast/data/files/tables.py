"""Rows of CSV and TSV files, by the standard library. Each row becomes one JSON object."""

from __future__ import annotations

import csv
import itertools
import re
from collections import deque
from collections.abc import Iterator
from typing import BinaryIO

import orjson

from holdfast.data.files.raw_row import UnparsedRow

_SEPARATOR_LINE = re.compile(rb'"?[Ss][Ee][Pp]=([,;|\t])"?')  # as Excel writes and reads it before the header
MISSING = ("nan", "NaN", "<NA>")  # as pandas writes that there is no value
_LONGEST_RECORD = 1 << 20  # bytes; what a quote that is never closed may swallow


class _TooLong(Exception):
    """A record goes on and on: a quote was opened and not closed."""


class _Lines:
    """Lines for the csv module, which also remembers those of the record at hand."""

    def __init__(self, handle: BinaryIO) -> None:
        self.handle, self.number, self.size = handle, 0, 0
        self.taken: list[bytes] = []
        self.again: deque[bytes] = deque()  # lines that are read once more

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = self.again.popleft() if self.again else self.handle.readline(_LONGEST_RECORD)
        if not line:
            raise StopIteration
        self.number += line.endswith(b"\n")
        self.taken.append(line)
        self.size += len(line)
        if self.size > _LONGEST_RECORD:
            raise _TooLong
        return _text(line)

    def record(self) -> bytes:
        raw, self.taken, self.size = b"".join(self.taken), [], 0
        return raw

    def first_alone(self) -> bytes:
        """Return the first line of the record at hand; the others are read once more."""
        first, *others = self.taken
        self.number -= sum(line.endswith(b"\n") for line in others)
        self.again.extendleft(reversed(others))
        self.taken, self.size = [], 0
        return first


def _text(line: bytes) -> str:
    return line.decode("utf-8", "surrogateescape").replace("\0", "\ufffd")


def _is_open(lines: list[bytes], separator: str, too_many: bool) -> bool:
    """Return whether a record's quote is closed nowhere, or by one that opens a cell. too_many: more fields than the header names."""
    raw = b"".join(lines)
    if b'"' not in raw or (len(lines) == 1 and raw.count(b'"') % 2 == 0):
        return False
    try:
        list(csv.reader(map(_text, lines), delimiter=separator, strict=True))
    except csv.Error as error:
        return len(lines) > 1 or "unexpected end" in str(error)
    return too_many and len(lines) > 1


def _unclosed(lines: _Lines, first: int) -> UnparsedRow:
    taken, last = len(lines.taken), lines.number
    said = f"the quote opened in line {first:,} is not closed: it took {taken:,} lines, up to line {last:,}" if taken > 1 else ""
    said = said or f"the quote opened in line {first:,} is not closed"
    behind = f"; reading goes on in line {first + 1:,}" if taken > 1 else ""
    return UnparsedRow(first, lines.first_alone().rstrip(b"\r\n"), ("parse_error", f"no CSV record: {said}{behind}"))


def read_csv(handle: BinaryIO, head: bytes) -> Iterator[UnparsedRow]:
    """Yield every record behind the header, which names the fields; the separator is the one the header has most of."""
    csv.field_size_limit(_LONGEST_RECORD)
    first_line, _, behind = head.partition(b"\n")
    told = _SEPARATOR_LINE.fullmatch(first_line.strip(b"\xef\xbb\xbf\r "))
    line = behind.split(b"\n", 1)[0] if told else first_line
    separator = told[1].decode() if told else max(",\t;|", key=line.decode("utf-8", "replace").count)
    lines = _Lines(handle)
    header: list[str] | None = None
    reader = csv.reader(lines, delimiter=separator)
    while True:
        first = lines.number + 1
        try:
            fields = next(reader)
        except StopIteration:
            return
        except (_TooLong, csv.Error) as error:
            if len(lines.taken) > 1 and lines.taken[0].endswith(b"\n") and _is_open(lines.taken, separator, False):
                yield _unclosed(lines, first)
                reader = csv.reader(lines, delimiter=separator)
                continue
            raw = lines.record()
            wrong = f"a quote is not closed within {_LONGEST_RECORD:,} bytes" if isinstance(error, _TooLong) else str(error)
            yield UnparsedRow(first, raw.rstrip(b"\r\n"), ("parse_error", f"no CSV record: {wrong}"))
            reader = csv.reader(lines, delimiter=separator)
            continue
        if header is not None and _is_open(lines.taken, separator, len(fields) > len(header)):
            yield _unclosed(lines, first)
            continue
        taken = lines.taken
        raw = lines.record().rstrip(b"\r\n")
        if not any(field.strip() for field in fields) or (told and lines.number <= 1):
            continue
        if header is None:
            header = [field.strip() or f"column {place}" for place, field in enumerate(fields, 1)]
        elif found := _as_written(taken, fields, separator, len(header)) if b'"' in raw else fields:
            yield _record(first, raw, header, found)
        else:
            wrong = 'a quote stands inside of a quoted field, where it has to be written twice: ""'
            yield UnparsedRow(first, raw, ("parse_error", f"no CSV record: {wrong}"))


def _as_written(lines: list[bytes], fields: list[str], separator: str, count: int) -> list[str]:
    """Return the fields of a record with quotes in it as its writer meant them; empty where that cannot be told.

    fields: as the csv module reads them, which drops quotes from the middle of a text without a word. count: fields of the header.
    """
    text = _text(b"".join(lines)).rstrip("\r\n")
    exact = _strictly(text, separator)
    if exact is not None and f'{separator} "' not in text:
        return fields
    if exact is not None:  # "a", "b, c"
        spaced = _strictly(text, separator, spaced=True) or []
        if len(exact) == len(spaced):
            return [new if old.startswith(' "') else old for old, new in zip(exact, spaced, strict=True)]
        return spaced if len(spaced) == count else exact
    closed = re.sub(rf'((?<!")(?:"")*") +(?={re.escape(separator)}|$)', r"\1", text)  # "a, b" , c
    if apart := _strictly(closed, separator, spaced=True):
        return apart
    cells = text.split(separator)  # as programs write tables that know no quoting
    quoted = any(len(cell) > 1 and cell.startswith('"') and cell.endswith('"') for cell in cells)
    return cells if len(cells) == count and not quoted else []


def _strictly(text: str, separator: str, spaced: bool = False) -> list[str] | None:
    """Parse a record by the rules of quoting; None where it breaks them. spaced: spaces before a field are none of it."""
    lines = filter(None, re.split(r"(?<=\n)", text))
    try:
        found = [*csv.reader(lines, delimiter=separator, strict=True, skipinitialspace=spaced)]
    except csv.Error:
        return None
    return found[0] if len(found) == 1 else None


def _record(line: int, raw: bytes, header: list[str], fields: list[str]) -> UnparsedRow:
    if len(fields) > len(header):
        return UnparsedRow(line, raw, ("parse_error", f"{len(fields)} fields, the header names {len(header)}"))
    values = [None if field.strip() in MISSING else field for field in fields]
    named = dict(itertools.zip_longest(header, values))
    for name, value in zip(header, values, strict=False):
        if named[name] != value:
            return UnparsedRow(line, raw, ("duplicate_key", f"the header names {name!r} more than once, here with different values"))
    try:
        return UnparsedRow(line, raw, None, orjson.dumps(named))
    except (TypeError, orjson.JSONEncodeError):
        if _is_utf_8(raw):
            return UnparsedRow(line, raw, ("bad_encoding", "a name in the header is not UTF-8"))
        return UnparsedRow(line, raw, None, raw)  # parsing says where


def _is_utf_8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
