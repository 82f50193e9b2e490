"""A feature that is the target."""

from collections.abc import Iterator

from holdfast.book.kinds.table_check import TableCheck, TableFacts


def look(table: TableFacts) -> Iterator[str]:
    for one in table.columns:
        if one.target_match > 0.9999:
            when = "the target" if not one.target_lag else f"the target {one.target_lag:,} rows later"
            yield f"the feature {one.name} is {when} (agreement {one.target_match:.4%}): it gives away what is to be learned"


CARD = TableCheck(
    title="A feature that is the target",
    why="A column that equals the target, or that of a later row, is known only when nothing is left to predict.",
    source=["https://scikit-learn.org/stable/common_pitfalls.html"],
    severity="block",
    fix="leave it out with table.ignore",
    look=look,
    hits=[{"columns": [{"name": "a", "target_match": 1.0}]}, {"columns": [{"name": "a", "target_match": 1.0, "target_lag": 3}]}],
    misses=[{"columns": [{"name": "a", "target_match": 0.99}]}],
)
