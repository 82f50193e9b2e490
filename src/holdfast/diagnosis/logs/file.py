"""Read any log in bounded memory: its head, its tail, and what surrounds lines that look like trouble. Judges nothing.

A file of 1 GiB costs a few passes of `bytes.find` per marker, and keeps some mebibytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from holdfast.diagnosis.logs.text import TROUBLE, Line, clean_lines

WHOLE = 4 << 20  # a log up to this size is kept whole
HEAD, TAIL, CHUNK = 1 << 20, 2 << 20, 16 << 20
SAMPLE = 1 << 14  # from the start of each chunk, for the course of the loss
BEFORE, AFTER = 2000, 4000  # bytes kept around a marker
HITS = 40  # of one marker; the first error counts, and the tail holds the last ones
MARKERS = tuple(word.encode() for word in TROUBLE)


@dataclass(frozen=True)
class _Piece:
    start: int  # line number of its first line
    data: bytes


def read_log(stream: BinaryIO, whole: int = WHOLE, chunk: int = CHUNK) -> tuple[Line, ...]:
    """Read the lines of a log that are worth judging, in order."""
    data = stream.read(whole + 1)
    if len(data) <= whole:
        return tuple(clean_lines(_decode(data)))
    pieces = [piece for part in _chunks(stream, data, chunk) for piece in part]
    lines: list[Line] = []
    for piece in pieces:
        fresh = clean_lines(_decode(piece.data), piece.start)
        last = lines[-1].number if lines else None
        lines += [line for line in fresh if last is None or (line.number or 0) > last]
    return tuple(lines)


def _decode(data: bytes) -> str:
    """Decode UTF-8, or UTF-16 where a byte order mark says so (what PowerShell writes)."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", errors="replace")
    return data.decode("utf-8", errors="replace")


def _chunks(stream: BinaryIO, first: bytes, size: int) -> Iterator[list[_Piece]]:
    """Yield head, hits and samples of each chunk as they come; the tail at the end."""
    number, counts, data = 1, dict.fromkeys(MARKERS, 0), first
    yield [_Piece(1, first[: first.rfind(b"\n", 0, HEAD) + 1])]
    tail: list[_Piece] = []
    while data:
        rest = stream.read(size)
        if rest and (cut := data.rfind(b"\n") + 1):
            data, rest = data[:cut], data[cut:] + rest
        elif rest and len(data) > 2 * size:
            rest = b"\n" + rest  # a line without end is cut
        elif rest:
            data += rest
            continue
        pieces, counted = [], 0
        tail = [*tail, _Piece(number, data)]
        while len(tail) > 1 and sum(len(piece.data) for piece in tail[1:]) >= TAIL:
            del tail[0]
        for start, end in _windows(data, counts):
            number, counted = number + data.count(b"\n", counted, start), start
            pieces.append(_Piece(number, data[start:end]))
        yield pieces
        number += data.count(b"\n", counted)
        data = rest
    yield [_last_bytes(tail)]


def _last_bytes(tail: list[_Piece]) -> _Piece:
    data = b"".join(piece.data for piece in tail)
    begin = max(0, len(data) - TAIL)
    start = max(begin, data.find(b"\n", begin) + 1)  # the middle of a line that is longer
    return _Piece(tail[0].start + data.count(b"\n", 0, start), data[start:])


def _windows(data: bytes, counts: dict[bytes, int]) -> list[tuple[int, int]]:
    """Return spans of whole lines around markers, merged and in order; and a sample from the start."""
    spans = [(0, min(SAMPLE, len(data)))]
    for marker in MARKERS:
        at = data.find(marker) if counts[marker] < HITS else -1
        while at >= 0:
            counts[marker] += 1
            spans.append((max(0, at - BEFORE), min(len(data), at + AFTER)))
            at = data.find(marker, at + AFTER) if counts[marker] < HITS else -1
    merged: list[tuple[int, int]] = []
    for start, end in sorted((_line_start(data, start), _line_end(data, end)) for start, end in spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _line_start(data: bytes, at: int) -> int:
    """Find where the line begins that `at` is in, or a place not far before it."""
    return max(data.rfind(b"\n", max(0, at - SAMPLE), at) + 1, at - SAMPLE, 0)


def _line_end(data: bytes, at: int) -> int:
    end = data.find(b"\n", at, at + SAMPLE)
    return min(len(data), at + SAMPLE) if end < 0 else end + 1
