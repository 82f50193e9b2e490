"""What `data check` shows of a table: the counts, the columns, what its checks find. Every text of a table is escaped."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from holdfast.base.files import Json
from holdfast.base.units import counted
from holdfast.report.data.lines import headline, reasons
from holdfast.report.words import visible

_COLUMNS = 60  # that are shown in a terminal


def show(answer: Json) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print(headline(answer), markup=False)
    for line in facts(answer):
        console.print(f"  {line}", markup=False)
    columns = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in HEADS:
        columns.add_column(name, justify="left" if name in ("column", "kind") else "right", overflow="fold")
    for one in answer["columns"][:_COLUMNS]:
        columns.add_row(*cells(one))
    console.print(columns, markup=False)
    if len(answer["columns"]) > _COLUMNS:
        console.print(f"  and {len(answer['columns']) - _COLUMNS:,} more columns (--json, --html)", markup=False)
    reasons(console, "what is wrong", answer["by_reason"], answer)
    reasons(console, "notes (rows that are kept as they are)", notes(answer), answer)
    for finding in answer["findings"]:
        console.print(visible(f"{finding['severity']:<5}  {finding['id']}: {finding['message']}"), markup=False)
        console.print(visible(f"       -> {finding['fix']}"), markup=False)
    if answer.get("out"):
        console.print(f"clean rows: {answer['out']}; rejects: {answer['rejects']}", markup=False)


HEADS = ("column", "kind", "low", "mean", "high", "missing", "values")


def cells(column: Json) -> list[str]:
    """Return a column as texts under `HEADS`."""
    missing, values = column.get("missing"), column.get("values")
    told = "too many" if column["kind"] == "name" and values is None else f"{values:,}" if values is not None else ""
    numbers = ["" if column.get(name) is None else f"{column[name]:.6g}" for name in ("low", "mean", "high")]
    return [visible(column["name"]), column["kind"], *numbers, f"{missing:,}" if missing else "", told]


def facts(answer: Json) -> list[str]:
    """Describe forms, columns and what is learned, in sentences."""
    forms = ", ".join(sorted({file["form"] for file in answer["files"]}))
    kinds = [column["kind"] for column in answer["columns"]]
    lines = [f"{counted(len(answer['files']), 'file')} ({forms}), read as a table: {kinds.count('number'):,} columns of numbers, "]
    lines[0] += f"{kinds.count('name'):,} of names, {kinds.count('time'):,} of times (rows of text? say so: --format LAYOUT)"
    if answer["target"]:
        lines.append(f"learned: {visible(answer['target'])} ({answer['learned']}); figures of columns are of the rows to train on")
    else:
        lines.append("no column is named as the target, so leaks of it and classes were not looked for: --target COLUMN, or --config FILE")
    return lines


def notes(answer: Json) -> dict[str, int]:
    """Count the rows that stay, by what is to be told of them."""
    counts: dict[str, int] = dict(answer["notes"])
    return counts | ({"duplicate": answer["duplicates"]} if answer["duplicates"] else {})
