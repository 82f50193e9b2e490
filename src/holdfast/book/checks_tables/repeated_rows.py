"""Rows that repeat."""

from holdfast.book.kinds.table_check import TableCheck

CARD = TableCheck(
    title="Rows that repeat",
    why="Rows with the same values in every column may stand on both sides of a split. Then a model is judged by rows it has learned.",
    source=["https://scikit-learn.org/stable/common_pitfalls.html"],
    severity="warn",
    fix="remove repetitions, or part the rows by group or time",
    look=lambda table: (
        [f"{table.repeated_rows:,} of {table.rows:,} rows repeat another in every column; held-out rows may have been learned"]
        if table.repeated_rows > 0.01 * table.rows
        else []
    ),
    hits=[{"rows": 1000, "repeated_rows": 200}],
    misses=[{"rows": 1000, "repeated_rows": 2}],
)
