"""A column that never changes."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.base.units import listed
from holdfast.book.kinds.table_check import TableCheck, TableFacts


def look(table: TableFacts) -> Iterator[str]:
    found = [one.name for one in table.columns if one.constant]
    if found:
        yield f"the same value in every training row, left out: {listed(found)}"


CARD = TableCheck(
    title="A column that never changes",
    why="Nothing can be learned from a column with one value, and scaling it divides by 0. It is left out of the features.",
    source=["https://scikit-learn.org/stable/common_pitfalls.html"],
    severity="warn",
    fix="leave it out yourself with table.ignore",
    look=look,
    hits=[{"columns": [{"name": "a", "constant": True}]}],
    misses=[{"columns": [{"name": "a"}]}],
)
