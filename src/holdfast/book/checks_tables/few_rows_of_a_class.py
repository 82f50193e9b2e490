"""A class with too few rows."""

from collections.abc import Iterator

from holdfast.base.units import listed
from holdfast.book.kinds.table_check import TableCheck, TableFacts


def look(table: TableFacts) -> Iterator[str]:
    few = [f"{name} ({count:,})" for name, count in table.classes.items() if count < 10]
    if few:
        yield f"classes with fewer than 10 training rows: {listed(few)}"
    unseen = [name for name, count in table.held_out_classes.items() if count and not table.classes.get(name)]
    if unseen:
        yield f"classes among held-out rows that no training row has: {listed(unseen)}"


CARD = TableCheck(
    title="A class with too few rows",
    why="A class of a handful of rows can neither be learned nor measured. A class that the held-out part alone has is always missed.",
    source=["https://scikit-learn.org/stable/modules/cross_validation.html"],
    severity="warn",
    fix="merge rare classes, or find more rows of them; table.class_weights: balanced does not replace them",
    look=look,
    hits=[{"classes": {"a": 900, "b": 3}}, {"classes": {"a": 900}, "held_out_classes": {"c": 4}}],
    misses=[{"classes": {"a": 900, "b": 30}}],
)
