"""A feature that counts the rows."""

from holdfast.book.kinds.table_check import TableCheck, of_columns

CARD = TableCheck(
    title="A feature that counts the rows",
    why="An index that was written with the table says where a row stands. In a sorted file that gives away what is to be learned, "
    "and no row of another file has such numbers.",
    source=["https://pandas.pydata.org/docs/reference/api/pandas.DataFrame.to_csv.html"],
    severity="warn",
    fix="leave it out with table.ignore, or write the table without it (index=False)",
    look=of_columns(
        "columns that count the rows of their file: {}", lambda one: (one.name or "(one without a name)") if one.counts_rows else ""
    ),
    hits=[{"columns": [{"name": "", "counts_rows": True}]}],
    misses=[{"columns": [{"name": "Id"}]}],
)
