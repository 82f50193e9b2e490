"""JSON values that do not stand one a line: the elements of an array, or objects one after the other. Bounded memory; parses no row.

Bytes are looked at as Latin-1, one character each: where a value ends does not depend on the letters in it. What is damaged becomes
one damaged row that reaches up to the next value that looks like the first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import BinaryIO

from holdfast.data.files.raw_row import LARGEST_ROW, UnparsedRow, overlong

_LONGEST_LITERAL = 64  # characters in which the decoder has told a damaged literal from one that the window cuts off
WINDOW = 1 << 20  # bytes that are looked at together
_EXTENT = json.JSONDecoder(parse_int=len, parse_float=len)  # asked for the end of a value, not for the value itself
_FIRST_KEY = re.compile(r'\{\s*"(?:[^"\\]|\\.)*"')


class JsonStream:
    """Values of one stream, with the line each begins on. `in_array`: the stream is one JSON array, whose elements begin at `begin`.

    Where the first one's line holds more of them, as a program writes an array, lines tell no rows apart: rows are then counted instead.
    """

    def __init__(self, handle: BinaryIO, in_array: bool, begin: int = 0) -> None:
        self.handle, self.in_array = handle, in_array
        self.text = handle.read(WINDOW).decode("latin-1")
        self.at, self.line, self.ended = 0, 1, False
        self.count, self._counted, self._passed = 0, False, 0  # values begun; whether they are rows' numbers; characters dropped
        self._lost = False  # whether the end was reached inside of damage
        self._again: re.Pattern[str] | None = None  # how a value begins, as the first one did
        if in_array:
            self._move(begin or self.text.index("[") + 1)

    def rows(self) -> Iterator[UnparsedRow]:
        between = " \t\r\n" if self.in_array else " \t\r\n,"
        while not self._cut_off(between):
            if self.in_array and self.text[self.at] == "]":
                self._move(self.at + 1)
                yield from self._after_the_array()
                return
            end = self._value_end()
            if isinstance(end, int):
                self._remember()
                self._counted = self._counted or (not self.count and self._shares_its_line(end))
                yield UnparsedRow(self._place(), self.text[self.at : end].encode("latin-1"))
                self._move(end)
            else:
                yield self._damaged(end)
            between = " \t\r\n,"
        if self.in_array and not self._lost:
            yield UnparsedRow(self._place(), b"", ("parse_error", "the array's closing bracket is missing: the file is cut off"))

    def _after_the_array(self) -> Iterator[UnparsedRow]:
        if not self._cut_off(" \t\r\n"):
            yield self._damaged("text behind the array's closing bracket")

    def _place(self) -> int:
        """Count the value at hand; return the line it begins on, or its number where several begin on line 1."""
        self.count += 1
        self._counted = self._counted or (self.count == 2 and self.line == 1)
        return self.count if self._counted else self.line

    def _shares_its_line(self, end: int) -> bool:
        """Return whether another value follows on the line of the value at hand, which ends at `end`."""
        behind = self.text[end : end + _LONGEST_LITERAL].lstrip(" \t\r,")
        return "\n" not in self.text[self.at : end] and behind[:1] not in ("", "\n", "]", "}")

    def _remember(self) -> None:
        if self._again is None:
            start = _FIRST_KEY.match(self.text, self.at)
            key = re.escape(start[0][1:].strip()) if start else None
            self._again = re.compile(rf"[\s,\]}}](\{{\s*{key})" if key else r"(?!)")

    def _damaged(self, wrong: str) -> UnparsedRow:
        """Return all bytes up to the next value that begins like the first one as one row; of a long stretch only the start is kept."""
        line, kept, size = self._place(), "", 0
        self._remember()
        assert self._again is not None
        begin = self.at
        while True:
            found = self._again.search(self.text, begin)
            to = found.start(1) if found else max(self.at, len(self.text) - (0 if self.ended else 1 << 10))
            size += to - self.at
            kept += self.text[self.at : to][: LARGEST_ROW - len(kept)]
            self._move(to)
            if found or self.ended:
                break
            self._grow()
            begin = self.at
        self._lost = not found
        place = f"at row {line + 1}" if self._counted else f"in line {self.line}"
        lost = f"reading goes on {place}" if found else "nothing after this point can be read"
        raw = kept.rstrip(" \t\r\n,").encode("latin-1")
        return overlong(line, raw, size) if size > len(kept) else UnparsedRow(line, raw, ("parse_error", f"{wrong}; {lost}"))

    def _cut_off(self, between: str) -> bool:
        """Move to the next character that is not one of `between`; return whether the stream ends before it."""
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

    def _value_end(self) -> int | str:
        """Return where the value at hand ends, or what is wrong with it. At the window's end only a longer window can tell."""
        while True:
            wrong = ""
            try:
                _, end = _EXTENT.raw_decode(self.text, self.at)
            except json.JSONDecodeError as error:
                wrong = f"{error.msg} in line {self.line + self.text.count(chr(10), self.at, error.pos)}"
                wrong += f", character {self._passed + error.pos + 1:,}" if self._counted else ""
                if not error.msg.startswith("Unterminated") and error.pos + _LONGEST_LITERAL < len(self.text):
                    return wrong  # reading on would not mend it
            except RecursionError:
                return "nested too deeply"
            if self.ended or (not wrong and end + len("e+") < len(self.text)):
                return wrong or end
            if len(self.text) - self.at > LARGEST_ROW:
                return f"a value of more than {LARGEST_ROW:,} bytes"
            self._grow()

    def _move(self, to: int) -> None:
        self.line += self.text.count("\n", self.at, to)
        self.at = to

    def _grow(self) -> None:
        """Read on, twice as far for a value that does not fit; what lies behind is dropped."""
        kept = self.text[self.at :]
        fresh = self.handle.read(max(WINDOW, len(kept)))
        self._passed += self.at
        self.text, self.at, self.ended = kept + fresh.decode("latin-1"), 0, not fresh
