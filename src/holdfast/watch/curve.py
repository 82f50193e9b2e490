"""What a run's steps tell, as curves of bounded size, read on from where the last look ended."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import orjson

from holdfast.base.files import Json
from holdfast.base.safe_open import open_regular

_BUCKETS = 250
_CHUNK = 1 << 20  # bytes read at once
FIGURES = ("loss", "grad_norm", "speed")  # speed: tokens a second

Point = tuple[int, float]  # step, value


class Curve:
    """Of each stretch of steps the lowest and the highest value, so that no spike is lost however long the run is."""

    def __init__(self) -> None:
        self._buckets: list[tuple[Point, Point]] = []
        self._width, self._in_last = 1, 0

    def add(self, point: Point) -> None:
        if self._buckets and self._in_last < self._width:
            low, high = self._buckets[-1]
            if point[1] < low[1]:
                self._buckets[-1] = point, high
            elif point[1] > high[1]:
                self._buckets[-1] = low, point
            self._in_last += 1
            return
        self._buckets.append((point, point))
        self._in_last = 1
        if len(self._buckets) > _BUCKETS:
            pairs = zip(self._buckets[::2], self._buckets[1::2], strict=False)
            odd = self._buckets[-1:] if len(self._buckets) % 2 else []
            merged = [(min(one[0], two[0], key=_value), max(one[1], two[1], key=_value)) for one, two in pairs]
            self._in_last = self._in_last if odd else self._width + self._in_last
            self._buckets, self._width = merged + odd, 2 * self._width

    def points(self) -> list[Point]:
        """Return the points in the order of steps."""
        return [point for bucket in self._buckets for point in sorted(set(bucket))]


class Curves:
    """The curves of a journal, one of each of FIGURES."""

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._begin(0)

    def _begin(self, file: int) -> None:
        self._at, self._file = 0, file
        self._of = {name: Curve() for name in FIGURES}

    def read(self) -> None:
        """Take in what was appended since; all of it again where the journal was replaced. Raises OSError where it may not be read."""
        try:
            handle = open_regular(self._journal)
        except FileNotFoundError:
            self._begin(0)
            return
        with handle:
            facts = os.fstat(handle.fileno())
            if facts.st_ino != self._file or facts.st_size < self._at:
                self._begin(facts.st_ino)
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
        if not isinstance(row, dict) or not isinstance(step := row.get("step"), int):
            return
        for name, value in (("loss", row.get("loss")), ("grad_norm", row.get("grad_norm")), ("speed", speed(row))):
            if isinstance(value, int | float):
                self._of[name].add((step, float(value)))

    def points(self, name: str = "loss") -> list[Point]:
        return self._of[name].points()


def speed(row: Json) -> float | None:
    """Return tokens a second of a step; None where they are not known."""
    seconds, tokens = row.get("seconds"), row.get("tokens")
    known = isinstance(seconds, int | float) and isinstance(tokens, int | float) and seconds > 0
    return tokens / seconds if known else None  # type: ignore[operator]


def _value(point: Point) -> float:
    return point[1]
