"""A horizon that ends in another series, or among held-out rows."""

from collections.abc import Iterator

from holdfast.book.kinds.table_check import TableCheck, TableFacts


def look(table: TableFacts) -> Iterator[str]:
    if table.horizon_crosses:
        yield f"of {table.rows:,} rows {table.horizon_crosses:,} learn the change to a row of another group: a horizon counts a file's rows"
    if by := table.horizon_parted_by:
        yield f"parted by {by}, held-out rows lie within the horizons of training rows: what they show is partly memory, and no forecast"
    if table.short_gap:
        purge, horizon = table.short_gap
        told = f"the horizon is {horizon:,} rows, table.purge leaves out {purge:,} of them: what the last {horizon - purge:,} training rows"
        yield f"{told} of a series learn ends among held-out rows, which are then partly known"


CARD = TableCheck(
    title="A horizon over other rows",
    why="The change between two series is no change of either. What a training row learns was not known before the held-out rows it spans.",
    source=["https://otexts.com/fpp3/tscv.html"],
    severity="warn",
    fix="one file a series; split: time; leave table.purge out: the gap is the horizon then",
    look=look,
    hits=[{"horizon_crosses": 3}, {"horizon_parted_by": "row"}, {"short_gap": [0, 20]}],
    misses=[{"horizon_crosses": 0}],
)
