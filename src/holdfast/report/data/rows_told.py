"""What became of a run's rows and what they teach, from its data.json: one line, and what of them is lost."""

from __future__ import annotations

from holdfast.base.files import Json
from holdfast.base.units import counted
from holdfast.data.templates.dropped import told_of_dropped
from holdfast.data.tokens.taught import told_of
from holdfast.report.words import beyond, unused_fields


def rows_line(data: Json) -> str:
    """Say how many rows there are, kept, repaired and rejected, and why."""
    line = f"{counted(data['rows'], 'row')} = {data['kept']:,} kept + {data['mended']:,} repaired + {data['rejected']:,} rejected"
    if data["by_reason"]:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in sorted(data["by_reason"].items(), key=lambda item: -item[1]))
        line += f" ({reasons})"
    return line


def row_warnings(data: Json, train_on: str = "assistant") -> list[str]:
    """Say what is lost or may mean something else in rows that are trained on, a sentence each. A table's rows teach no answers."""
    told = unused_fields(data["unused_fields"]) if data.get("unused_fields") else []
    told += [f"! {line}" for line in beyond(data["by_reason"], f"{data['max_tokens']:,} tokens")] if "max_tokens" in data else []
    told += told_of(data["learned"], train_on) if "learned" in data else []
    told += told_of_dropped(data.get("notes", {}))
    return [line.removeprefix("! ") for line in told if line.startswith("! ")]
