"""A column that never changes."""

from holdfast.book.kinds.table_check import TableCheck, of_columns

CARD = TableCheck(
    title="A column that never changes",
    why="Nothing can be learned from a column with one value, and scaling it divides by 0. It is left out of the features.",
    source=["https://scikit-learn.org/stable/common_pitfalls.html"],
    severity="warn",
    fix="leave it out yourself with table.ignore",
    look=of_columns("the same value in every training row, left out: {}", lambda one: one.name if one.constant else ""),
    hits=[{"columns": [{"name": "a", "constant": True}]}],
    misses=[{"columns": [{"name": "a"}]}],
)
