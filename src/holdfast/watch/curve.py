"""The losses of a run as a curve of bounded size, read on from where the last look ended."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import orjson

from holdfast.base.files import Json
from holdfast.base.safe_open import open_regular

_BUCKETS = 250
_CHUNK = 1 << 20  # bytes read at once

Point = tuple[int, float]  # step, loss


class Curve:
    """Of each stretch of steps the lowest and the highest loss, so that no spike is lost however long the run is."""

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._at, self._file = 0, 0
        self._forget()

    def _forget(self) -> None:
        self._buckets: list[tuple[Point, Point]] = []
        self._width, self._in_last = 1, 0

    def read(self) -> None:
        """Take in what was appended since; all of it again where the journal was replaced. Raises OSError where it may not be read."""
        try:
            handle = open_regular(self._journal)
        except FileNotFoundError:
            self._at, self._file = 0, 0
            self._forget()
            return
        with handle:
            facts = os.fstat(handle.fileno())
            if facts.st_ino != self._file or facts.st_size < self._at:
                self._at, self._file = 0, facts.st_ino
                self._forget()
            handle.seek(self._at)
            left = b""
            while chunk := handle.read(_CHUNK):
                *lines, left = (left + chunk).split(b"\n")
                self._at += sum(len(line) + 1 for line in lines)
                for line in lines:
                    self._take(line)
                if len(left) > _CHUNK:  # no line of a journal
                    break

    def _take(self, line: bytes) -> None:
        row: Json = {}
        with contextlib.suppress(orjson.JSONDecodeError):
            row = orjson.loads(line)
        step, loss = (row.get("step"), row.get("loss")) if isinstance(row, dict) else (None, None)
        if isinstance(step, int) and isinstance(loss, int | float):
            self._add((step, float(loss)))

    def _add(self, point: Point) -> None:
        if self._buckets and self._in_last < self._width:
            low, high = self._buckets[-1]
            self._buckets[-1] = min(low, point, key=_loss), max(high, point, key=_loss)
            self._in_last += 1
            return
        self._buckets.append((point, point))
        self._in_last = 1
        if len(self._buckets) > _BUCKETS:
            pairs = zip(self._buckets[::2], self._buckets[1::2], strict=False)
            odd = self._buckets[-1:] if len(self._buckets) % 2 else []
            merged = [(min(one[0], two[0], key=_loss), max(one[1], two[1], key=_loss)) for one, two in pairs]
            self._in_last = self._in_last if odd else self._width + self._in_last
            self._buckets, self._width = merged + odd, 2 * self._width

    def points(self) -> list[Point]:
        """In the order of steps."""
        return [point for bucket in self._buckets for point in sorted(set(bucket))]


def _loss(point: Point) -> float:
    return point[1]
