"""The same for the 7B shape, once."""

from __future__ import annotations

from stages import takeover
from stages.common import Place


def run(place: Place) -> None:
    takeover.run(place, "qwen7b", 1)
