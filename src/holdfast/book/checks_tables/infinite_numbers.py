"""Infinite numbers."""

from holdfast.book.kinds.table_check import TableCheck, of_columns

CARD = TableCheck(
    title="Infinite numbers",
    why="An infinity makes the mean of its column infinite, and the first product NaN. Divisions by 0 leave them behind.",
    source=["https://numpy.org/doc/stable/user/misc.html"],
    severity="warn",
    fix="write what a ratio is worth where its denominator is 0; such rows are rejected",
    look=of_columns("infinite numbers: {}; their rows are rejected", lambda one: f"{one.name} ({one.infinite:,})" if one.infinite else ""),
    hits=[{"columns": [{"name": "a", "infinite": 1}]}],
    misses=[{"columns": [{"name": "a"}]}],
)
