"""The loss is exactly 0."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.base.files import Json
from holdfast.book.kinds.sign import Sign, column


def look(steps: Sequence[Json]) -> str | None:
    losses = column(steps[-3:], "loss")
    if len(losses) == 3 and not any(losses):
        return "the loss is exactly 0 in three steps: no label is left, or the arithmetic has broken down"
    return None


CARD = Sign(
    cause="no_learning_signal",
    title="loss exactly 0",
    why="A cross-entropy of exactly 0 over many tokens does not happen by learning. Labels are all masked, or 16-bit numbers ran over.",
    source=["https://github.com/tloen/alpaca-lora/issues/391"],
    look=look,
    hits=[{"loss": [2.0, 0.0, 0.0, 0.0]}],
    misses=[{"loss": [2.0, 1.0, 0.0, 0.01]}, {"loss": [0.0, 0.0]}],
)
