"""What `holdfast check` found, as a page."""

from __future__ import annotations

from holdfast.base.files import Json
from holdfast.report.table_page import TableOf, table_page


def check_page(name: str, answer: Json) -> str:
    """Render the items and the start's facts as one HTML file."""
    heads = ("item", "verdict", "what was seen", "numbers", "next")
    rows = [(one["id"], one["verdict"], one["why"], one["numbers"], one["next"]) for one in answer["items"]]
    failed = [one["id"] for one in answer["items"] if one["verdict"] == "failed"]
    told = f"failed: {', '.join(failed)}" if failed else "nothing failed"
    tables = [TableOf("Items", heads, rows), TableOf("Start", ("what", "value"), list(answer["start"].items()))]
    return table_page(f"holdfast check {name}", told, tables, bad=bool(failed))
