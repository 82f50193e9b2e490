"""A column that is mostly missing."""

from holdfast.book.kinds.table_check import TableCheck, of_columns

CARD = TableCheck(
    title="A column that is mostly missing",
    why="A column without values in nearly every row teaches little beyond its own absence. Often a name or a join is wrong.",
    source=["https://scikit-learn.org/stable/modules/impute.html"],
    severity="warn",
    fix="correct the join, or leave it out with table.ignore",
    look=of_columns(
        "columns without a value in most rows: {}",
        lambda one: f"{one.name} ({one.missing / one.rows:.0%})" if one.rows and one.missing > 0.9 * one.rows else "",
    ),
    hits=[{"columns": [{"name": "a", "rows": 100, "missing": 95}]}],
    misses=[{"columns": [{"name": "a", "rows": 100, "missing": 50}]}],
)
