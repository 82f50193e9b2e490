"""The same for the 7B shape."""

from __future__ import annotations

from stages import prices
from stages.common import Place


def run(place: Place) -> None:
    prices.run(place, "qwen7b", ("plain", "dropout", "dropout-unfused", "liger", "deterministic"))
