"""Times with and without an offset."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.book.kinds.table_check import TableCheck, TableFacts


def look(table: TableFacts) -> Iterator[str]:
    if table.zoned and table.plain:
        yield f"{table.zoned:,} times have an offset, {table.plain:,} have none"


CARD = TableCheck(
    title="Times with and without an offset",
    why="A time with an offset is a moment, one without is local time of some place. Mixed, rows of one moment lie hours apart.",
    source=["https://docs.python.org/3/library/datetime.html"],
    severity="block",
    fix="write all times with an offset, or all without",
    look=look,
    hits=[{"zoned": 10, "plain": 1}],
    misses=[{"zoned": 10}, {"plain": 10}],
)
