"""Rows of one JSON object that holds lists of them, such as {"train": [...], "test": [...]}. Bounded memory."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from holdfast.data.files.form import LISTS
from holdfast.data.files.json_stream import JsonStream
from holdfast.data.files.raw_row import OTHER_SPLIT, UnparsedRow
from holdfast.row_sources.splits import judges

_SPACE, _BETWEEN = " \t\r\n", " \t\r\n,"
_CUT_OFF = "the object's closing brace is missing: the file is cut off"
_LIST = re.compile(rb'"(' + "|".join(LISTS).encode() + rb')"\s*:\s*\[')


class RecordStream(JsonStream):
    """Rows of all lists of an object whose first one, `name`, begins at `begin`. `known`: names of all its lists, after a first reading."""

    def __init__(self, handle: BinaryIO, begin: int, name: str, known: Sequence[str] = ()) -> None:
        super().__init__(handle, True, begin)
        self.names, self._known = [name], known
        self._keys: set[str] | None = None  # of the first row
        self._closed = False  # whether the bracket of the list at hand was read

    def rows(self) -> Iterator[UnparsedRow]:
        while True:
            self._closed = False
            for row in super().rows():
                if self._keys is None and not row.damage:
                    self._keys = _keys(row.raw)
                if row.damage and (swallowed := _LIST.findall(row.raw)):
                    self.names.append(swallowed[-1].decode())
                yield row if row.damage else self._judged(row)
            if not self._closed:
                return
            wrong = self._next_list()
            if wrong is None:
                return
            if wrong:
                yield self._damaged(wrong)

    def _judged(self, row: UnparsedRow) -> UnparsedRow:
        """Return the row, or the one that says that it is left out for the list it stands in."""
        name = self.names[-1]
        others = [repr(other) for other in dict.fromkeys(self._known or self.names) if other != name]
        if not others or not judges(name):
            return row
        said = f"it stands in the list {name!r}, beside {', '.join(others)}: a split that judges is not trained"
        return row._replace(damage=(OTHER_SPLIT, f"{said}; jq -c '.{name}[]' takes its rows out, for data.held_out_files"))

    def _after_the_array(self) -> Iterator[UnparsedRow]:
        self._closed = True
        return iter(())

    def _next_list(self) -> str | None:
        """Move to the next list of rows, over all that is none. Return what is wrong there ("": nothing), None at the end."""
        while not self._cut_off(_BETWEEN):
            if self.text[self.at] == "}":
                self._move(self.at + 1)
                return None if self._cut_off(_SPACE) else "text behind the object's closing brace"
            end = self._value_end()
            if not isinstance(end, int):
                return end
            name = self.text[self.at : end].strip('"')
            self._move(end)
            if self._cut_off(_SPACE + ":"):
                break
            if self.text[self.at] == "[":
                self._move(self.at + 1)
                if self._holds_rows(name):
                    self.names.append(name)
                    return ""
                wrong = self._over_list()
            else:
                wrong = self._over_value()
            if wrong:
                return wrong
        return _CUT_OFF

    def _holds_rows(self, name: str) -> bool:
        """Return whether the list at hand is one of rows: of objects, so named or with a field of the first row."""
        if self._cut_off(_SPACE) or self.text[self.at] != "{":
            return False
        end = self._value_end()
        keys = _keys(self.text[self.at : end].encode("latin-1")) if isinstance(end, int) else set()
        return not isinstance(end, int) or name.lower() in LISTS or self._keys is None or not self._keys.isdisjoint(keys)

    def _over_list(self) -> str:
        """Move behind a list that holds no rows. Return what is wrong in it."""
        while not self._cut_off(_BETWEEN):
            if self.text[self.at] == "]":
                self._move(self.at + 1)
                return ""
            if wrong := self._over_value():
                return wrong
        return _CUT_OFF

    def _over_value(self) -> str:
        end = self._value_end()
        if isinstance(end, int):
            self._move(end)
        return "" if isinstance(end, int) else end


def _keys(raw: bytes) -> set[str]:
    try:
        value = json.loads(raw.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return set()
    return set(value) if isinstance(value, dict) else set()
