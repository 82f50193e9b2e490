"""A loss far above those before it."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from holdfast.base.files import Json
from holdfast.book.kinds.sign import Sign, column

_BEFORE = 20


def look(steps: Sequence[Json]) -> str | None:
    losses = column(steps[-_BEFORE - 1 :], "loss")
    if len(losses) <= _BEFORE:
        return None
    usual, last = median(losses[:-1]), losses[-1]
    if last > 3 * usual and last > usual + 1:
        return f"the loss jumped to {last:.3g} from about {usual:.3g}; most spikes go back by themselves"
    return None


CARD = Sign(
    title="a spike of the loss",
    why="One batch unlike the others, or a step too far, lifts the loss for a while. Most runs come back; what does not is divergence.",
    source=["https://arxiv.org/abs/2204.02311"],
    look=look,
    hits=[{"loss": [2.0] * 20 + [9.0]}],
    misses=[{"loss": [2.0] * 20 + [4.0]}, {"loss": [0.1] * 20 + [0.5]}, {"loss": [9.0]}],
)
