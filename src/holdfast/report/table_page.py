"""A page of tables that needs nothing else, for what `check`, `compare` and `tune` found. Escapes every text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from holdfast.base.units import figure

_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:75rem;padding:0 1rem;color-scheme:light dark}"
    "table{border-collapse:collapse;width:100%;margin:1rem 0}td,th{padding:.25rem .6rem;text-align:left;border-bottom:1px solid #8884;"
    "vertical-align:top;overflow-wrap:anywhere}.bad{color:#c0392b;font-weight:600}.bar{background:#4a90d9;height:.8rem}"
)
BAD = ("failed", "refused", "slower")


@dataclass(frozen=True)
class TableOf:
    """A table with a title. bar: the column whose numbers are drawn beside it."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[object]]
    bar: int | None = None


def table_page(title: str, told: str, tables: Sequence[TableOf]) -> str:
    """The tables as one HTML file."""
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'><title>{escape(title)}</title>"
        f"<style>{_STYLE}</style><h1>{escape(title)}</h1><p>{escape(told)}</p>{''.join(map(_table, tables))}</html>\n"
    )


def _table(table: TableOf) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in table.heads)
    at = table.bar
    most = max((row[at] for row in table.rows if at is not None and isinstance(row[at], int | float)), default=0)  # type: ignore[type-var]
    body = "".join(f"<tr>{''.join(map(_cell, row))}{_bar(row, at, most)}</tr>" for row in table.rows)
    return f"<h2>{escape(table.title)}</h2><table><tr>{head}{'<th></th>' if at is not None else ''}</tr>{body}</table>"


def _bar(row: Sequence[object], at: int | None, most: object) -> str:
    value = None if at is None else row[at]
    if at is None or not isinstance(value, int | float) or not isinstance(most, int | float) or not most:
        return "" if at is None else "<td></td>"
    return f"<td style='width:14rem'><div class=bar style='width:{100 * value / most:.1f}%'></div></td>"


def _cell(value: object) -> str:
    return f"<td{' class=bad' if value in BAD else ''}>{escape(in_words(value))}</td>"


def in_words(value: object) -> str:
    """A value as people read it; a dash where nothing is known."""
    if value is None:
        return "-"
    if isinstance(value, dict):
        return ", ".join(f"{name}: {in_words(one)}" for name, one in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(in_words, value))
    return figure(value) if isinstance(value, float) else str(value)
