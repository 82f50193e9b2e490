"""How often the bits differ where kernels may choose their order: the default of a card, if it is not deterministic."""

from __future__ import annotations

from stages import exact
from stages.common import Place


def run(place: Place) -> None:
    exact.run(place, deterministic=False)
