"""A sign: something odd in the course of a run's committed steps, told and never acted on. Which steps to look at is the caller's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pydantic import Field

from holdfast.base.files import Json
from holdfast.book.kinds.catalog import Card
from holdfast.book.kinds.failure import Cause


class Sign(Card):
    """`look` says in words what is odd about the newest rows of steps.jsonl, or nothing. `hits` and `misses` are such rows.

    A card may write rows short, as {"loss": [3.0, 2.5, ...]}: a list for each column.
    """

    cause: Cause | None = Field(None, description="what a run that ends like this suffers from; None: it may be well all the same")
    newest: int = Field(240, exclude=True, description="how many of the newest rows it looks at")
    look: Callable[[Sequence[Json]], str | None] = Field(exclude=True)

    def matches(self, evidence: Any) -> bool:
        return self.look(rows(evidence)) is not None


def rows(columns: Any) -> list[Json]:
    """Convert columns to rows; return rows as they are."""
    if not isinstance(columns, dict):
        return list(columns)
    count = len(next(iter(columns.values())))
    return [{"step": at + 1, **{name: values[at] for name, values in columns.items()}} for at in range(count)]


def column(steps: Sequence[Json], name: str) -> list[float]:
    """Return the values of a column that are there, in order."""
    return [float(row[name]) for row in steps if row.get(name) is not None]
