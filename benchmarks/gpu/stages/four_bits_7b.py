"""The same for the 7B shape."""

from __future__ import annotations

from stages import four_bits
from stages.common import Place


def run(place: Place) -> None:
    four_bits.run(place, "qwen7b")
