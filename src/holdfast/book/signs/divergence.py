"""The loss climbs and does not come back."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from holdfast.base.files import Json
from holdfast.book.kinds.sign import Sign, column

_WIDTHS, _WINDOWS = (5, 20), 4  # steps whose median is a level, by how many there are
_FACTOR, _BY = 1.4, 0.5


def look(steps: Sequence[Json]) -> str | None:
    losses = column(steps, "loss")
    width = min(_WIDTHS[1], max(_WIDTHS[0], len(losses) // _WINDOWS))
    levels = [median(losses[at : at + width]) for at in range(len(losses) % width, len(losses), width)]
    if len(levels) < _WINDOWS:
        return None
    newest, best = levels[-3:], min(levels)
    if newest == sorted(newest) and newest[0] >= best and newest[-1] > best * _FACTOR and newest[-1] - best > _BY:
        return f"the loss climbs: from {best:.3g} at its best to {newest[-1]:.3g} over {3 * width} steps; try a lower learning rate"
    return None


CARD = Sign(
    cause="divergence",
    title="steady divergence",
    why="A level that rises over many steps, unlike a spike, does not come back by itself. The rate is too high, or precision is lost.",
    source=["https://github.com/microsoft/Megatron-DeepSpeed"],
    look=look,
    hits=[{"loss": [2.0] * 40 + [2.0 + at / 20 for at in range(60)]}],
    misses=[
        {"loss": [2.0] * 100},
        {"loss": [2.0] * 40 + [9.0] * 5 + [2.0] * 60},
        {"loss": [0.1] * 40 + [0.1 + at / 1000 for at in range(60)]},
    ],
)
