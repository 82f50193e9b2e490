"""The same for the 7B shape."""

from __future__ import annotations

from stages import speed
from stages.common import Place


def run(place: Place) -> None:
    speed.run(place, "qwen7b", 20, 340)
