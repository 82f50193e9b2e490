"""What a drill shows: a line for each rehearsal as it ends, and a page that needs nothing else. Escapes every text."""

from __future__ import annotations

from html import escape

from holdfast.base.files import Json

_COLUMNS = ("survived", "identical", "attempts", "found_cause", "found_remedy", "trials", "seconds")
_HEADS = ("fault", "survived", "identical", "attempts", "cause found", "remedy found", "trials", "seconds")
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem;color-scheme:light dark}"
    "table{border-collapse:collapse;width:100%}td,th{padding:.25rem .6rem;text-align:left;border-bottom:1px solid #8884}"
    ".bad{color:#c0392b;font-weight:600}"
)


def said(value: object) -> str:
    """A value as people read it; - where nothing was to be expected."""
    return "-" if value is None else {True: "yes", False: "NO"}[value] if isinstance(value, bool) else str(value)


def line(row: Json) -> str:
    """One rehearsal on a line."""
    found = "" if row["found_cause"] is None else f", cause {row['cause'] or 'not'} found" if row["found_cause"] else ", cause NOT found"
    same = "" if row["identical"] is None else ", same result" if row["identical"] else ", ANOTHER result"
    remedy = f", remedy {row['remedy']}" if row["remedy"] else ""
    state = "survived" if row["survived"] else "NOT survived"
    count = "1 attempt" if row["attempts"] == 1 else f"{row['attempts']} attempts"
    missed = "" if row.get("struck", True) else "; it ended before it could be struck"
    departs = f" (it departs at {row['departs']})" if row.get("departs") else ""
    return f"{row['name']}: {state}{same}{departs}{found}{remedy}; {count}, {row['seconds']:.0f} s{missed}"


def page(rows: list[Json], told: str) -> str:
    """The table as one HTML file."""
    head = "".join(f"<th>{name}</th>" for name in _HEADS)
    body = "".join(f"<tr><td>{escape(row['name'])}</td>" + "".join(_cell(row[name]) for name in _COLUMNS) + "</tr>" for row in rows)
    title = "holdfast drill"
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'><title>{title}</title>"
        f"<style>{_STYLE}</style><h1>{title}</h1><p>{escape(told)}</p><table><tr>{head}</tr>{body}</table></html>\n"
    )


def _cell(value: object) -> str:
    return f"<td class=bad>{said(value)}</td>" if value is False else f"<td>{escape(said(value))}</td>"
