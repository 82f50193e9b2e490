"""Times with and without an offset."""

from holdfast.book.kinds.table_check import TableCheck

CARD = TableCheck(
    title="Times with and without an offset",
    why="A time with an offset is a moment, one without is local time of some place. Mixed, rows of one moment lie hours apart.",
    source=["https://docs.python.org/3/library/datetime.html"],
    severity="block",
    fix="write all times with an offset, or all without",
    look=lambda table: [f"{table.zoned:,} times have an offset, {table.plain:,} have none"] if table.zoned and table.plain else [],
    hits=[{"zoned": 10, "plain": 1}],
    misses=[{"zoned": 10}, {"plain": 10}],
)
