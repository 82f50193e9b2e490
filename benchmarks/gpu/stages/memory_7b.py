"""The same for the 7B shape."""

from __future__ import annotations

from stages import memory
from stages.common import Place


def run(place: Place) -> None:
    memory.run(place, "qwen7b", ("2k", "8k-checkpointed", "8k-rank-64"))
