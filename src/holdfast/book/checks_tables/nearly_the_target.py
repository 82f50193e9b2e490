"""A feature that says nearly all of the target."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.base.units import listed
from holdfast.book.kinds.table_check import TableCheck, TableFacts


def look(table: TableFacts) -> Iterator[str]:
    found = [
        f"{one.name} ({one.target_correlation:.5f})"
        for one in table.columns
        if one.target_correlation > 0.9999 and one.target_match <= 0.9999
    ]
    if found:
        yield f"features in a straight line with the target: {listed(found)}"


CARD = TableCheck(
    title="A feature that says nearly all of the target",
    why="A correlation of 1 with the target is rare outside of copies in another unit. It may be made from what is to be learned.",
    source=["https://scikit-learn.org/stable/common_pitfalls.html"],
    severity="warn",
    fix="make sure that it is known before the target is, or leave it out with table.ignore",
    look=look,
    hits=[{"columns": [{"name": "a", "target_correlation": 0.99999}]}],
    misses=[
        {"columns": [{"name": "a", "target_correlation": 0.99}]},
        {"columns": [{"name": "a", "target_correlation": 1.0, "target_match": 1.0}]},
    ],
)
