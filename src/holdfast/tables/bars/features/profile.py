"""Where the close stands in the volume profile. VPOC, VAH, VAL: bin of most volume, edges of the value area (volume_profile.py)."""

from __future__ import annotations

import numpy as np

from holdfast.tables.bars.features.feature import feature
from holdfast.tables.bars.features.stretch import Stretch
from holdfast.tables.bars.features.windows import Column, shifted

_DALTON = "Dalton, Jones & Dalton, Mind over Markets, 1990; Steidlmayer's market profile"


@feature("log ratio", _DALTON)
def vpoc_distance(bars: Stretch) -> Column:
    """ln(C / VPOC of the session so far)."""
    return np.log(bars.close / bars.profile.session.vpoc)


@feature("log ratio", _DALTON)
def vah_distance(bars: Stretch) -> Column:
    """ln(C / VAH of the session so far)."""
    return np.log(bars.close / bars.profile.session.high)


@feature("log ratio", _DALTON)
def val_distance(bars: Stretch) -> Column:
    """ln(C / VAL of the session so far)."""
    return np.log(bars.close / bars.profile.session.low)


@feature("log ratio", _DALTON)
def value_area_width(bars: Stretch) -> Column:
    """ln(VAH / VAL) of the session so far."""
    return np.log(bars.profile.session.high / bars.profile.session.low)


@feature("log ratio", _DALTON)
def vpoc_migration(bars: Stretch) -> Column:
    """ln(VPOC / VPOC 60 bars before) of the session so far; where that bar is of another session: since the first bar."""
    vpoc = bars.profile.session.vpoc
    begun = bars.of_session(vpoc[bars.starts])
    place = np.arange(len(bars)) - bars.starts[bars.session_number]
    return np.log(vpoc / np.where(place >= 60, shifted(vpoc, 60), begun))


@feature("ratio", _DALTON)
def node_volume(bars: Stretch) -> Column:
    """Volume of the session so far at the bin of C, relative to the mean of the bins with volume."""
    return bars.profile.here


@feature("count", _DALTON)
def node_count(bars: Stretch) -> Column:
    """Bins of the session so far with more volume than the bin below, as much as the one above, and half of the VPOC's."""
    return bars.profile.nodes


@feature("log ratio", _DALTON)
def vpoc_before_distance(bars: Stretch) -> Column:
    """ln(C / VPOC of the whole session before)."""
    return np.log(bars.close / bars.profile.before.vpoc)


@feature("log ratio", _DALTON)
def rolling_vpoc_distance(bars: Stretch) -> Column:
    """ln(C / VPOC of the 1,380 newest bars)."""
    return np.log(bars.close / bars.profile.rolling.vpoc)


@feature("ratio", _DALTON)
def rolling_value_position(bars: Stretch) -> Column:
    """(C - VAL) / (VAH - VAL) of the 1,380 newest bars."""
    levels = bars.profile.rolling
    return (bars.close - levels.low) / (levels.high - levels.low)
