"""Times that are missing in the series."""

from holdfast.book.kinds.table_check import TableCheck

CARD = TableCheck(
    title="Times that are missing in the series",
    why="A horizon counts rows. Where rows are missing it reaches further in time than it seems.",
    source=["https://otexts.com/fpp3/tscv.html"],
    severity="info",
    fix="nothing, where the market was closed; else find the missing rows",
    look=lambda table: (
        [f"rows are {table.usual_step_s:g} s apart, but in {table.missing_times:,} places further"]
        if table.missing_times and table.usual_step_s
        else []
    ),
    hits=[{"missing_times": 4, "usual_step_s": 60.0}],
    misses=[{"missing_times": 0, "usual_step_s": 60.0}],
)
