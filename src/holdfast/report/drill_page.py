"""What a drill shows: a line for each rehearsal as it ends, and a page that needs nothing else."""

from __future__ import annotations

from holdfast.base.files import Json
from holdfast.report.table_page import TableOf, table_page

_COLUMNS = ("struck", "survived", "identical", "attempts", "found_cause", "found_remedy", "trials", "seconds")
_HEADS = ("fault", "struck", "survived", "identical", "attempts", "cause found", "remedy found", "trials", "seconds")


def said(value: object) -> str:
    """Format a value for people; - where nothing was to be expected."""
    return "-" if value is None else {True: "yes", False: "NO"}[value] if isinstance(value, bool) else str(value)


def line(row: Json) -> str:
    """Format a rehearsal on one line."""
    if not row["struck"] and row["survived"] and row["identical"] is not False:
        return f"{row['name']}: NOT STRUCK, so nothing was rehearsed; the run ended before the fault could come, {row['seconds']:.0f} s"
    found = "" if row["found_cause"] is None else f", cause {row['cause'] or 'not'} found" if row["found_cause"] else ", cause NOT found"
    same = "" if row["identical"] is None else ", same result" if row["identical"] else ", ANOTHER result"
    remedy = f", remedy {row['remedy']}" if row["remedy"] else ""
    state = "survived" if row["survived"] else "NOT survived"
    count = "1 attempt" if row["attempts"] == 1 else f"{row['attempts']} attempts"
    missed = "" if row["struck"] else "; it ended before it could be struck"
    departs = f" (it departs at {row['departs']})" if row.get("departs") else ""
    return f"{row['name']}: {state}{same}{departs}{found}{remedy}; {count}, {row['seconds']:.0f} s{missed}"


def page(rows: list[Json], told: str) -> str:
    """Render the table as one HTML file."""
    cells = [(row["name"], *(said(row[name]) for name in _COLUMNS)) for row in rows]
    bad = not all(row["survived"] and row["struck"] and row["identical"] is not False for row in rows)
    return table_page("holdfast drill", told, [TableOf("Rehearsals", _HEADS, cells)], bad)
