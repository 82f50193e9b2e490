"""Several rows of one time."""

from holdfast.book.kinds.table_check import TableCheck

CARD = TableCheck(
    title="Several rows of one time",
    why="A second row of the same time is a repetition, or two series lie in one file. A horizon of rows then means nothing. "
    "Local times without an offset repeat in the hour when summer time ends: both passes count as the first one.",
    source=["https://otexts.com/fpp3/tscv.html"],
    severity="warn",
    fix="keep one row a time, or one file a series; write local times with their offset, of which an hour comes twice in autumn",
    look=lambda table: [f"{table.repeated_times:,} of {table.rows:,} rows have the time of another row"] if table.repeated_times else [],
    hits=[{"repeated_times": 1}],
    misses=[{"repeated_times": 0}],
)
