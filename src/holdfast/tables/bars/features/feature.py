"""What a feature is: a function of bars with a unit and a source. Its docstring is the formula, in terms of the bars up to t."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import TypeAlias

import numpy as np

from holdfast.tables.bars.features.stretch import Stretch
from holdfast.tables.bars.features.windows import Column

Compute: TypeAlias = Callable[[Stretch], Column]


@dataclass(frozen=True)
class Feature:
    """One column. unit: of its values; source: where its definition comes from; needs_vix: it is left out where no VIX is given."""

    name: str
    formula: str
    unit: str
    source: str
    needs_vix: bool
    function: Compute

    def of(self, bars: Stretch) -> Column:
        """Compute the feature at each bar; NaN where it has no value (too few bars before, nothing traded)."""
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            values = self.function(bars)
        return np.where(np.isfinite(values), values, np.nan)


_MARK = "_feature"


def feature(unit: str, source: str, needs_vix: bool = False, name: str = "", formula: str = "") -> Callable[[Compute], Compute]:
    """Mark a function as a feature; name, formula: by default its own name and docstring."""

    def mark(function: Compute) -> Compute:
        told = name or function.__name__, formula or inspect.getdoc(function) or ""
        setattr(function, _MARK, Feature(*told, unit, source, needs_vix, function))
        return function

    return mark


def of_module(module: ModuleType) -> list[Feature]:
    """Return the features of a module, in the order they stand in."""
    found = [getattr(value, _MARK, None) for value in vars(module).values() if getattr(value, "__module__", "") == module.__name__]
    return [feature for feature in found if isinstance(feature, Feature)]
