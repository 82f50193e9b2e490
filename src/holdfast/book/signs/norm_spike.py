"""A gradient far larger than those before it."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from holdfast.base.files import Json
from holdfast.book.kinds.sign import Sign, column

_BEFORE, _TIMES = 20, 30


def look(steps: Sequence[Json]) -> str | None:
    norms = column(steps[-_BEFORE - 1 :], "grad_norm")
    if len(norms) <= _BEFORE:
        return None
    usual, last = median(norms[:-1]), norms[-1]
    if not last > _TIMES * usual > 0:
        return None
    return f"the gradient norm jumped to {last:.3g} from about {usual:.3g}; what is above train.max_grad_norm is clipped"


CARD = Sign(
    title="a spike of the gradient norm",
    why="A gradient many times the usual one comes before a spike of the loss, or from one odd row. Clipping bounds its effect.",
    source=["https://arxiv.org/abs/2204.02311"],
    look=look,
    hits=[{"grad_norm": [1.0] * 20 + [50.0]}],
    misses=[{"grad_norm": [1.0] * 20 + [10.0]}, {"grad_norm": [0.0] * 20 + [1.0]}],
)
