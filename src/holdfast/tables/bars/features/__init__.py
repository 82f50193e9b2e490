"""The features of a bar, one function each: its docstring is the formula. `ALL` has them in the order of the columns."""

from holdfast.tables.bars.features import clock, prices, profile, ranges, vix, volatility, volume
from holdfast.tables.bars.features.feature import Feature, of_module

ALL: tuple[Feature, ...] = tuple(
    feature for module in (prices, ranges, volume, volatility, vix, clock, profile) for feature in of_module(module)
)
# the most bars before a bar that any feature of it looks at; those of a session look back to the begin of the session before
LOOKBACK = 1500
