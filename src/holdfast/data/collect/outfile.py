"""The file collected rows go to: which rows it holds already, new ones appended durably, ratings that came later. Its single writer.

Whatever stands in it stays byte for byte; only a row without a rating may be given one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from holdfast.base.files import Json, fsync_folder, replacing
from holdfast.data.duplicates.seen import SeenKeys
from holdfast.data.duplicates.similar import key_of, normal
from holdfast.data.files.raw_row import RawRow, json_line
from holdfast.data.files.read import read_rows, with_all_digits
from holdfast.data.judge.judge import view_of, with_calls
from holdfast.data.judge.layouts import parse_example
from holdfast.data.judge.turns import BadRow

_AT_ONCE = 4096  # keys that are sorted in together
_NEWEST_BYTES = 1 << 20


def row_key(row: Json) -> int:
    """Hash the content of a row to 64 bits, whatever its layout, case and spaces. Raises BadRow."""
    example = parse_example(row, "auto")
    view = view_of(example)
    prompt, answer = with_calls(example, view.prompt, view.answer)
    return key_of(f"{normal(prompt)}\n{normal(answer)}")


class OutFile:
    """Rows in `path`, one JSON object a line. Raises OSError where it cannot be read or written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._keys = SeenKeys()
        self._ratings: dict[int, Any] = {}
        self.rows = self.rated_later = 0
        self.torn = self._mend_end()
        if path.exists() and path.stat().st_size:
            self._read()

    def _read(self) -> None:
        keys: list[int] = []
        for row in read_rows(str(self.path)):
            self.rows += 1
            if not isinstance(row, RawRow):
                continue
            try:
                keys.append(row_key(with_all_digits(row.raw, row.value)))
            except BadRow:
                continue
            if len(keys) == _AT_ONCE:
                self._keys.add(np.array(keys, np.int64))
                keys = []
        if keys:
            self._keys.add(np.array(keys, np.int64))

    def add(self, rows: list[Json]) -> list[bool]:
        """Append the rows that are new, durably; return which these were. A repeated row's rating is kept for the first of its kind."""
        keys = [row_key(row) for row in rows]
        again = self._keys.add(np.array(keys, np.int64)) if keys else np.zeros(0, np.bool_)
        fresh = [row for row, known in zip(rows, again, strict=True) if not known]
        append(self.path, fresh)
        self.rows += len(fresh)
        for row, key, known in zip(rows, keys, again, strict=True):
            if known and row.get("rating") is not None:
                self._ratings[key] = row["rating"]
        return [not known for known in again]

    def keep_ratings(self) -> None:
        """Write the ratings that came with repeated rows into the rows that have none."""
        if not self._ratings:
            return
        given = 0
        with self.path.open("rb") as old, replacing(self.path) as new:
            for line in old:
                value = _row_without_rating(line)
                if value is not None and (key := row_key(value)) in self._ratings:
                    line = json_line(value | {"rating": self._ratings[key]})
                    given += 1
                new.write(line)
        self.rated_later += given
        self._ratings = {}

    def _mend_end(self) -> bytes:
        """End a last line that has no end; where a kill tore it, cut it off and give it back."""
        if not self.path.exists():
            return b""
        with self.path.open("rb+") as handle:
            size = handle.seek(0, os.SEEK_END)
            start = size
            tail = b""
            while start and b"\n" not in tail:
                start = max(0, start - _NEWEST_BYTES)
                handle.seek(start)
                tail = handle.read(size - start)
            last = tail[tail.rfind(b"\n") + 1 :]
            if not last:
                return b""
            try:
                orjson.loads(last)
            except orjson.JSONDecodeError:
                handle.truncate(size - len(last))
                return last
            handle.seek(size)
            handle.write(b"\n")
            return b""


def append(path: Path, rows: Iterable[Json]) -> None:
    """Append whole lines and wait until they are on the disk; of a write that fails nothing stays."""
    data = b"".join(json_line(row) for row in rows)
    if not data:
        return
    is_new = not path.exists()
    with path.open("ab", buffering=0) as handle:
        before = os.fstat(handle.fileno()).st_size
        try:
            written = 0
            while written < len(data):
                written += handle.write(data[written:])
            os.fsync(handle.fileno())
        except OSError:
            os.ftruncate(handle.fileno(), before)
            raise
    if is_new:
        fsync_folder(path.parent)


def _row_without_rating(line: bytes) -> Json | None:
    try:
        value = with_all_digits(line, orjson.loads(line))
        if not isinstance(value, dict) or value.get("rating") is not None:
            return None
        parse_example(value, "auto")
    except (orjson.JSONDecodeError, BadRow):
        return None
    return value
