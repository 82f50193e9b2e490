"""A page of tables that needs nothing else, for what `check`, `compare` and `tune` found. Escapes every text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from holdfast.base.units import figure, setting
from holdfast.report.pages import plain_page

BAD = ("failed", "refused", "slower", "NO")


@dataclass(frozen=True)
class TableOf:
    """A table with a title. bar: the column whose numbers are drawn beside it."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[object]]
    bar: int | None = None


def table_page(title: str, told: str, tables: Sequence[TableOf], bad: bool | None = None) -> str:
    """Render the tables as one HTML file. bad: whether what is told is a bad verdict, None: it is none."""
    return plain_page(title, told, "".join(map(_table, tables)), bad)


def _table(table: TableOf) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in table.heads)
    at = table.bar
    most = max((row[at] for row in table.rows if at is not None and isinstance(row[at], int | float)), default=0)  # type: ignore[type-var]
    body = "".join(f"<tr>{''.join(map(_cell, row, table.heads))}{_bar(row, at, most)}</tr>" for row in table.rows)
    drawn = f"<table class=stack><tr>{head}{'<th></th>' if at is not None else ''}</tr>{body}</table>"
    return f'<h2>{escape(table.title)}</h2><div class="card scroll wide" tabindex="0">{drawn}</div>'


def _bar(row: Sequence[object], at: int | None, most: object) -> str:
    value = None if at is None else row[at]
    if at is None or not isinstance(value, int | float) or not isinstance(most, int | float) or not most:
        return "" if at is None else "<td></td>"
    return f"<td style='width:14rem'><div style='background:var(--bar);height:.8rem;width:{100 * value / most:.1f}%'></div></td>"


def _cell(value: object, head: str) -> str:
    return f'<td{" class=bad" if value in BAD else ""} data-head="{escape(head)}">{escape(in_words(value))}</td>'


def in_words(value: object) -> str:
    """Format a value for people; a dash where nothing is known."""
    return setting(value, "-", figure, ", ", ": ", "")
