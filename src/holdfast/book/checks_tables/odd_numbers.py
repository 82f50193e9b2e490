"""Numbers that are written otherwise."""

from holdfast.book.kinds.table_check import TableCheck, of_columns

CARD = TableCheck(
    title="Numbers that are written otherwise",
    why="A decimal comma, a thousands separator, a currency or a percent sign make a text of a number. As names, 1,5 and 1,6 are no nearer "
    "to each other than to 900. They are not guessed: 1,500 is one and a half in one country and fifteen hundred in another.",
    source=["https://pandas.pydata.org/docs/user_guide/io.html"],
    severity="warn",
    fix="write them as 1500.5; or name the column under table.categories, if these are names",
    look=of_columns(
        "columns that are taken for names, though most of their values look like numbers: {}",
        lambda one: f"{one.name} ({one.odd_number})" if one.odd_number else "",
    ),
    hits=[{"columns": [{"name": "price", "kind": "category", "odd_number": "1,5"}]}],
    misses=[{"columns": [{"name": "kind", "kind": "category"}]}],
)
