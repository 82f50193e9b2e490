"""The page of `data check` for a table: one HTML file that needs nothing else. Computes nothing new, escapes every text."""

from __future__ import annotations

from holdfast.base.files import Json
from holdfast.base.versions import __version__
from holdfast.report.data.lines import headline
from holdfast.report.data.table_lines import HEADS, cells, facts, notes
from holdfast.report.pages import page_template


def render(answer: Json) -> str:
    """Render the findings as a page."""
    return page_template("tablepage.html").render(
        headline=headline(answer),
        facts=facts(answer),
        good=not answer["rejected"] and all(one["severity"] != "block" for one in answer["findings"]),
        heads=HEADS,
        columns=[cells(one) for one in answer["columns"]],
        tables=[("What is wrong", answer["by_reason"]), ("Notes: rows that are kept as they are", notes(answer))],
        answer=answer,
        version=__version__,
    )
