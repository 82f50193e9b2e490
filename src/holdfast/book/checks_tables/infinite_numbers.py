"""Infinite numbers."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.base.units import listed
from holdfast.book.kinds.table_check import TableCheck, TableFacts


def look(table: TableFacts) -> Iterator[str]:
    found = [f"{one.name} ({one.infinite:,})" for one in table.columns if one.infinite]
    if found:
        yield f"infinite numbers: {listed(found)}; their rows are rejected"


CARD = TableCheck(
    title="Infinite numbers",
    why="An infinity makes the mean of its column infinite, and the first product NaN. Divisions by 0 leave them behind.",
    source=["https://numpy.org/doc/stable/user/misc.html"],
    severity="warn",
    fix="write what a ratio is worth where its denominator is 0; such rows are rejected",
    look=look,
    hits=[{"columns": [{"name": "a", "infinite": 1}]}],
    misses=[{"columns": [{"name": "a"}]}],
)
