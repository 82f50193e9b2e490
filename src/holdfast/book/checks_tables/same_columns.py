"""Two columns with the same values."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.base.units import listed
from holdfast.book.kinds.table_check import TableCheck, TableFacts


def look(table: TableFacts) -> Iterator[str]:
    found = [f"{one.name} = {one.same_as}" for one in table.columns if one.same_as]
    if found:
        yield f"columns with the same values: {listed(found)}"


CARD = TableCheck(
    title="Two columns with the same values",
    why="A copy of a column adds parameters and no knowledge. It often is what is left of a join.",
    source=["https://scikit-learn.org/stable/common_pitfalls.html"],
    severity="warn",
    fix="leave one of them out with table.ignore",
    look=look,
    hits=[{"columns": [{"name": "b", "same_as": "a"}]}],
    misses=[{"columns": [{"name": "a"}, {"name": "b"}]}],
)
