"""What a table became: its columns with their scaling, its target, how it was parted. Kept with the arrays and with the finished model."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel

Array = npt.NDArray[Any]


class _Part(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """A part of a form: nothing unknown in it, no number that is not finite."""


class Number(_Part):
    """A column of numbers: (value - mean) / scale goes into the network, 0 where the value is missing.

    indicator: another input is 1 where it is missing. low, high: extremes of the training part.
    """

    name: str
    mean: float
    scale: float
    indicator: bool
    missing: int
    low: float
    high: float


class CategoryColumn(_Part):
    """A column of names. Value i of `values` is code i + 1; 0 is a name that no training row has, or none."""

    name: str
    values: tuple[str, ...]


class TargetColumn(_Part):
    """What is learned. For numbers the network gives (value - mean) / scale; for classes a logit each, in the order of `classes`.

    horizon: rows ahead; then the value is ln(column then / column now). counts: training rows of each class.
    """

    name: str
    kind: Literal["regression", "classification"]
    mean: float = 0.0
    scale: float = 1.0
    classes: tuple[str, ...] = ()
    counts: tuple[int, ...] = ()
    horizon: int | None = None

    def scaled(self, values: Array) -> Array:
        """Scale values of the column to what the network gives."""
        return (values - self.mean) / self.scale

    def unscaled(self, values: Array) -> Array:
        """Convert what the network gives to the column's own unit."""
        return values * self.scale + self.mean

    def stood(self, scaled: Array) -> Array:
        """Convert targets as a table keeps them, in float32, to the column's own unit; 0 is 0 again, and no move to either side."""
        values = self.unscaled(scaled.astype(np.float64))
        return np.where(np.abs(values) <= np.finfo(np.float32).eps * abs(self.mean), 0.0, values)


class Form(_Part):
    """A whole table. The network's inputs are the numbers, then the indicators, and the codes of the categories."""

    numbers: tuple[Number, ...]
    categories: tuple[CategoryColumn, ...]
    target: TargetColumn
    parted_by: Literal["row", "group", "time", "file"]
    purged: int = 0
    left_out: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        """Numbers that go into the network for a row, indicators among them."""
        return len(self.numbers) + len(self.indicators)

    @property
    def means(self) -> Array:
        """Of each number, as it is scaled."""
        return np.array([one.mean for one in self.numbers], np.float64)

    @property
    def scales(self) -> Array:
        """Of each number, as it is scaled."""
        return np.array([one.scale for one in self.numbers], np.float64)

    @property
    def indicators(self) -> list[int]:
        """Places of the numbers that have an indicator."""
        return [at for at, one in enumerate(self.numbers) if one.indicator]
