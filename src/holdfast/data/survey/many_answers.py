"""Prompts that stand with more than one answer, and the field that tells their rows apart although nothing is learned from it.

Reads the rows in question once more, and no others; changes none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from holdfast.base.files import Json
from holdfast.data.files.raw_row import RawRow, Source
from holdfast.data.files.read import parse, read_unparsed
from holdfast.data.judge.unused import counts_only

_MOST_ROWS = 5000  # that are read once more
_MOST_FIELDS = 3  # that are told
_ENOUGH = 0.8  # of the rows a field has to tell apart to be told


@dataclass
class ManyAnswers:
    """Of each prompt with several answers the rows: where each answer stood first. `known`: these rows; beyond the most none is noted."""

    asked: dict[int, dict[Source, None]] = field(default_factory=dict)
    known: int = 0

    def add(self, prompt: int, first: Source, other: Source) -> None:
        """Note a prompt that stood at `first`, and stands with another answer at `other`."""
        if self.known < _MOST_ROWS:
            rows = self.asked.setdefault(prompt, {first: None})
            self.known += len(rows) == 1
            self.known += other not in rows
            rows[other] = None

    def look(self, files: list[str], unused: Collection[str]) -> Json:
        """Count these prompts and rows; add the prompt with most answers, and of the fields of `unused` how many rows each tells apart."""
        if not self.asked:
            return {}
        most = max(self.asked.values(), key=len)
        first = next(iter(most))
        found = {"prompts": len(self.asked), "rows": self.known, "most": len(most), "file": first.file, "line": first.line}
        names = [name for name in unused if not counts_only(name)]
        apart = Counter[str]()
        values = _values(files, {source for rows in self.asked.values() for source in rows}) if names else {}
        for rows in self.asked.values() if names else ():
            apart.update(_told_apart([values[source] for source in rows if source in values], names))
        enough = [(name, count) for name, count in apart.most_common(_MOST_FIELDS) if count >= _ENOUGH * self.known]
        return found | {"told_apart_by": dict(enough)}


def _told_apart(rows: list[Json], names: list[str]) -> Iterator[str]:
    """Yield each name as often as there are rows with a value of their own in it."""
    for name in names:
        texts = Counter(_text(row.get(name)) for row in rows)
        yield from (name for text, count in texts.items() if count == 1 and text and len(texts) > 1)


def _text(value: Any) -> str:
    if value is None or value in ("", [], {}):
        return ""
    return value.strip() if isinstance(value, str) else orjson.dumps(value, default=str, option=orjson.OPT_SORT_KEYS).decode()


def _values(files: list[str], wanted: set[Source]) -> dict[Source, Json]:
    """Read the rows at the wanted places."""
    found: dict[Source, Json] = {}
    for file in files:
        lines = {source.line for source in wanted if source.file == file}
        for unparsed in read_unparsed(file) if lines else ():
            if unparsed.line in lines and isinstance(row := parse(file, unparsed), RawRow) and isinstance(row.value, dict):
                found.setdefault(Source(file, unparsed.line), row.value)
    return found
