"""A column of names with too many values."""

from holdfast.book.kinds.table_check import TableCheck, of_columns

CARD = TableCheck(
    title="A column of names with too many values",
    why="A value that few rows share teaches nothing about other rows: an id, a free text, a time in an unknown form. A run refuses it.",
    source=["https://scikit-learn.org/stable/modules/preprocessing.html#infrequent-categories"],
    severity="warn",
    fix="leave it out with table.ignore, name it as table.time or table.group, or raise table.max_categories",
    look=of_columns(
        "columns with so many different texts that they are no names of kinds: {}",
        lambda one: f"{one.name} (more than {one.distinct:,})" if one.uncounted else "",
    ),
    hits=[{"columns": [{"name": "id", "kind": "category", "distinct": 8001, "uncounted": True}]}],
    misses=[{"columns": [{"name": "kind", "kind": "category", "distinct": 40}]}],
)
