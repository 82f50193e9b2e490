"""A check of a whole table: what is odd about its columns, order or classes, as facts that were counted. Changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

from pydantic import BaseModel, Field

from holdfast.base.units import listed
from holdfast.book.kinds.catalog import Card


class ColumnFacts(BaseModel, frozen=True, extra="forbid"):
    """What was counted of a column.

    same_as: an earlier column with equal values; uncounted: it has more than `distinct` values; target_match: share of rows where it
    equals the target, target_lag: of so many rows later; target_correlation: absolute, with the same row's target. odd_number: a value of a
    column of names, where most of them are numbers that are written otherwise (1,5 or $20 or 7%). counts_rows: it is the number of its row.
    """

    name: str
    kind: Literal["number", "category"] = "number"
    rows: int = 1000
    missing: int = 0
    infinite: int = 0
    texts: int = 0
    distinct: int | None = None
    uncounted: bool = False
    constant: bool = False
    same_as: str | None = None
    target_match: float = 0.0
    target_correlation: float = 0.0
    target_lag: int = 0
    odd_number: str | None = None
    counts_rows: bool = False


class TableFacts(BaseModel, frozen=True, extra="forbid"):
    """What was counted of a table. usual_step_s: seconds between most rows; missing_times: places where it is more.

    held_out_repeated: of the held-out rows, those that equal a training row; combinations: of the features' values, where those are so few
    that rows are equal by chance. horizon_crosses: rows whose horizon ends in another group; horizon_parted_by: row or group, where
    horizons of training rows reach over held-out rows; short_gap: table.purge and the horizon, where the first is less.
    """

    columns: list[ColumnFacts] = Field(default_factory=list)
    rows: int = 1000
    repeated_rows: int = 0
    held_out_rows: int = 0
    held_out_repeated: int = 0
    combinations: int | None = None
    horizon_crosses: int = 0
    horizon_parted_by: Literal["row", "group"] | None = None
    short_gap: tuple[int, int] | None = None
    unordered: int = 0
    repeated_times: int = 0
    unreadable_times: int = 0
    missing_times: int = 0
    usual_step_s: float | None = None
    zoned: int = 0
    plain: int = 0
    classes: dict[str, int] = Field(default_factory=dict)
    held_out_classes: dict[str, int] = Field(default_factory=dict)


Look = Callable[[TableFacts], Iterable[str]]


def of_columns(told: str, named: Callable[[ColumnFacts], str]) -> Look:
    """Return the look that tells of the columns for which `named` has a text; their texts take the place of {} in `told`."""

    def look(table: TableFacts) -> Iterable[str]:
        found = [text for column in table.columns if (text := named(column))]
        return [told.format(listed(found))] if found else []

    return look


class TableCheck(Card):
    """`look` says in words what is odd about a table's facts. block: a run cannot begin; warn: it can. `hits`, `misses`: such facts."""

    severity: Literal["block", "warn", "info"]
    fix: str = Field(min_length=1)
    look: Look = Field(exclude=True)

    def matches(self, evidence: Any) -> bool:
        return any(True for _ in self.look(TableFacts.model_validate(evidence)))
