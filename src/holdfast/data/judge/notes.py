"""Note what is odd about rows that are trained on as they are. Changes no row, and counts none."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from holdfast.book.kinds.data_check import DataCheck
from holdfast.data.judge.judge import JudgedRow, active, found_in, joined_text
from holdfast.data.judge.rules import Rules, checks


def note(rows: list[JudgedRow], rules: Rules) -> Iterator[tuple[DataCheck, JudgedRow, str]]:
    """Yield each row that a check notes, with its finding. Tokens of a row that calls tools are taken for unknown: its text has not all."""
    for row in rows:
        if row.layout == "chat" and (row.example.tools or any(message.calls for message in row.example.messages)):
            row.tokens = None
    for card in active(itertools.filterfalse(rules.changes, checks()), joined_text(rows), rows):
        for row, detail in found_in(card, rows):
            yield card, row, detail
