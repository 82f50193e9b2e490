"""Two columns with the same values."""

from holdfast.book.kinds.table_check import TableCheck, of_columns

CARD = TableCheck(
    title="Two columns with the same values",
    why="A copy of a column adds parameters and no knowledge. It often is what is left of a join.",
    source=["https://scikit-learn.org/stable/common_pitfalls.html"],
    severity="warn",
    fix="leave one of them out with table.ignore",
    look=of_columns("columns with the same values: {}", lambda one: f"{one.name} = {one.same_as}" if one.same_as else ""),
    hits=[{"columns": [{"name": "b", "same_as": "a"}]}],
    misses=[{"columns": [{"name": "a"}, {"name": "b"}]}],
)
