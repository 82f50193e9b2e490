"""A row's weight: how much its loss counts beside that of other rows. Reads one field of a row; knows no tokens."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from holdfast.base.files import Json
from holdfast.data.judge.bad_row import BadRow, kind_of
from holdfast.data.judge.names import in_our_case

LEAST, MOST = 1e-6, 1e6  # beyond these a loss in fp32 says nothing of the other rows of a step, or nothing at all
_RANGE = f"{LEAST:f} to {MOST:,.0f}"
_SHOWN = 60  # characters of a value


def weight_of(value: Any, name: str, had_nan: bool = False) -> float | None:
    """Read the weight of a row in its field `name`, a number or its text; None where it has none. Raises BadRow.

    had_nan: the reader put null where the file has NaN or Infinity.
    """
    if not isinstance(value, dict):
        return None
    field = name if name in value else next((one for one in value if in_our_case(one) == in_our_case(name)), None)
    given = None if field is None else value[field]
    if given is None and field is not None and had_nan:
        raise BadRow("bad_weight", f"{name} must be a number from {_RANGE}, it is NaN or Infinity")
    if given is None or given == "":
        return None
    try:
        weight = math.nan if isinstance(given, bool) else float(given)
    except (TypeError, ValueError, OverflowError):
        weight = math.nan
    if weight == 0.0:
        raise BadRow("zero_weight", f"{name} is 0: nothing would be learned from the row")
    if not LEAST <= weight <= MOST:
        what = repr(given)[:_SHOWN] if isinstance(given, str | int | float) else kind_of(given)
        raise BadRow("bad_weight", f"{name} must be a number from {_RANGE}, it is {what}")
    return weight


@dataclass
class Weights:
    """The weights of rows that have one: how many, their sum, the least and the largest; 0 without any."""

    rows: int = 0
    total: float = 0.0
    least: float = 0.0
    most: float = 0.0

    def take(self, weights: Iterable[float | None]) -> None:
        for weight in weights:
            if weight is not None:
                self.merge(Weights(1, weight, weight, weight))

    def merge(self, other: Weights) -> None:
        if other.rows:
            self.least = min(self.least, other.least) if self.rows else other.least
            self.most = max(self.most, other.most)
            self.rows, self.total = self.rows + other.rows, self.total + other.total

    def as_json(self) -> Json:
        """Return `rows`, and of their weights `min`, `mean` and `max`, which are null without any."""
        found = (self.least, self.total / self.rows, self.most) if self.rows else (None, None, None)
        return {"rows": self.rows} | dict(zip(("min", "mean", "max"), found, strict=True))
