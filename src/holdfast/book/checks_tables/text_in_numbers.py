"""Text in a column of numbers."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.base.units import listed
from holdfast.book.kinds.table_check import TableCheck, TableFacts


def look(table: TableFacts) -> Iterator[str]:
    found = [f"{one.name} ({one.texts:,})" for one in table.columns if one.kind == "number" and one.texts]
    if found:
        yield f"texts in columns of numbers: {listed(found)}; their rows are rejected"


CARD = TableCheck(
    title="Text in a column of numbers",
    why="One word in a column of numbers makes most readers take all of it for text. Here such rows are rejected and counted by column.",
    source=["https://pandas.pydata.org/docs/user_guide/io.html"],
    severity="warn",
    fix="see the rejected rows; a column of names belongs into table.categories",
    look=look,
    hits=[{"columns": [{"name": "a", "texts": 3}]}],
    misses=[{"columns": [{"name": "a"}, {"name": "b", "kind": "category", "texts": 9}]}],
)
