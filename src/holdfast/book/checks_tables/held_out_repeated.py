"""Held-out rows that stand in training."""

from collections.abc import Iterator

from holdfast.book.kinds.table_check import TableCheck, TableFacts


def look(table: TableFacts) -> Iterator[str]:
    if not table.held_out_repeated:
        return
    told = f"{table.held_out_repeated:,} of {table.held_out_rows:,} held-out rows stand in training, the same in every column"
    if table.combinations is not None:
        yield f"{told}: they count, because {table.combinations:,} combinations of values make rows alike by chance"
    else:
        left = table.held_out_rows - table.held_out_repeated
        yield f"{told}: they are not counted, " + (f"{left:,} are left to judge by" if left else "and none is left to judge by")


CARD = TableCheck(
    title="Held-out rows that stand in training",
    why="A row that was trained on says nothing of rows that were not. Where columns have few values, rows are alike by chance and count.",
    source=["https://scikit-learn.org/stable/common_pitfalls.html"],
    severity="warn",
    fix="remove repetitions, or part the rows by group or time",
    look=look,
    hits=[{"held_out_rows": 100, "held_out_repeated": 1}, {"held_out_rows": 9, "held_out_repeated": 9, "combinations": 8}],
    misses=[{"held_out_rows": 100}],
)
