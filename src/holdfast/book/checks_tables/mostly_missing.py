"""A column that is mostly missing."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.base.units import listed
from holdfast.book.kinds.table_check import TableCheck, TableFacts


def look(table: TableFacts) -> Iterator[str]:
    found = [f"{one.name} ({one.missing / one.rows:.0%})" for one in table.columns if one.rows and one.missing > 0.9 * one.rows]
    if found:
        yield f"columns without a value in most rows: {listed(found)}"


CARD = TableCheck(
    title="A column that is mostly missing",
    why="A column without values in nearly every row teaches little beyond its own absence. Often a name or a join is wrong.",
    source=["https://scikit-learn.org/stable/modules/impute.html"],
    severity="warn",
    fix="correct the join, or leave it out with table.ignore",
    look=look,
    hits=[{"columns": [{"name": "a", "rows": 100, "missing": 95}]}],
    misses=[{"columns": [{"name": "a", "rows": 100, "missing": 50}]}],
)
