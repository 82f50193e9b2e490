"""Nothing moves."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.base.files import Json
from holdfast.book.kinds.sign import Sign, column

_STEPS = 10


def look(steps: Sequence[Json]) -> str | None:
    newest = steps[-_STEPS:]
    losses, norms, rates = (column(newest, name) for name in ("loss", "grad_norm", "lr"))
    if len(losses) < _STEPS:
        return None
    if len(norms) == _STEPS and not any(norms):
        return f"the gradient is exactly 0 in {_STEPS} steps: no weight is updated"
    if len(rates) == _STEPS and not any(rates):
        return f"the learning rate is 0 in {_STEPS} steps: no weight is updated"
    if len(set(losses)) == 1:
        return f"the loss is the same to the last digit in {_STEPS} steps: no weight is updated"
    return None


CARD = Sign(
    cause="no_learning_signal",
    title="nothing moves",
    why="With other samples in each step the loss differs. A constant one, or a gradient or rate of 0, means that nothing learns.",
    source=["https://github.com/BeyonderXX/TRACE/issues/5"],
    look=look,
    hits=[{"loss": [3.5] * 10}, {"loss": list(range(10)), "lr": [0.0] * 10}, {"loss": list(range(10)), "grad_norm": [0.0] * 10}],
    misses=[{"loss": [3.5] * 9}, {"loss": [3.5 - at / 100 for at in range(10)], "lr": [1e-4] * 10, "grad_norm": [1.0] * 10}],
)
