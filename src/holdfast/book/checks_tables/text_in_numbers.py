"""Text in a column of numbers."""

from holdfast.book.kinds.table_check import TableCheck, of_columns

CARD = TableCheck(
    title="Text in a column of numbers",
    why="One word in a column of numbers makes most readers take all of it for text. Here such rows are rejected and counted by column.",
    source=["https://pandas.pydata.org/docs/user_guide/io.html"],
    severity="warn",
    fix="see the rejected rows; a column of names belongs into table.categories",
    look=of_columns(
        "texts in columns of numbers: {}; their rows are rejected",
        lambda one: f"{one.name} ({one.texts:,})" if one.kind == "number" and one.texts else "",
    ),
    hits=[{"columns": [{"name": "a", "texts": 3}]}],
    misses=[{"columns": [{"name": "a"}, {"name": "b", "kind": "category", "texts": 9}]}],
)
