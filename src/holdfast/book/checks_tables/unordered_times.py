"""Rows that are not in the order of time."""

from holdfast.book.kinds.table_check import TableCheck

CARD = TableCheck(
    title="Rows that are not in the order of time",
    why="Windows and horizons count rows in the order of time. The rows are taken in that order, whatever the file's is.",
    source=["https://otexts.com/fpp3/tscv.html"],
    severity="info",
    fix="sort the file, if its order was meant to say something",
    look=lambda table: (
        [f"{table.unordered:,} of {table.rows:,} rows are earlier than the row before; they are taken in the order of time"]
        if table.unordered
        else []
    ),
    hits=[{"unordered": 3}],
    misses=[{"unordered": 0}],
)
