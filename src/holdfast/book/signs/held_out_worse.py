"""The held-out loss rises while the training loss falls."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from statistics import median

from holdfast.base.files import Json
from holdfast.book.kinds.sign import Sign, column

_RISES, _BY = 3, 1.02  # evaluations in a row that are worse, and how much worse the last one is than the best


def look(steps: Sequence[Json]) -> str | None:
    """Judge the held-out losses: `held_out_loss` stands in the rows whose step was evaluated."""
    measured = [row for row in steps if row.get("held_out_loss") is not None]
    held_out, losses = column(measured, "held_out_loss"), column(steps, "loss")
    newest = held_out[-_RISES - 1 :]
    if len(newest) <= _RISES or any(later <= earlier for earlier, later in itertools.pairwise(newest)):
        return None
    best = min(held_out)
    since = sum(1 for row in steps if row["step"] > measured[-_RISES - 1]["step"])
    before, now = median(losses[: max(1, len(losses) - since)]), median(losses[-max(1, since) :])
    if newest[-1] < _BY * best or now >= before:
        return None
    told = f"the held-out loss rose in {_RISES} evaluations, from {best:.3g} to {newest[-1]:.3g}, while the training loss fell"
    return f"{told}: the rows are being learned by heart; evaluate.patience ends such a run, and the best state is kept"


def _measured(*held_out: float) -> list[float | None]:
    """Return a column in which every tenth step was evaluated."""
    return [value for loss in held_out for value in (*[None] * 9, loss)]


CARD = Sign(
    title="worse on held-out rows while training improves",
    why="What is learned from here on no longer helps on rows that were not seen. Fewer epochs, a lower rate or more rows do.",
    source=["https://doi.org/10.1007/3-540-49430-8_3"],
    look=look,
    newest=10_000,
    hits=[{"loss": [3.0 - at / 40 for at in range(50)], "held_out_loss": _measured(2.0, 2.1, 2.2, 2.3, 2.5)}],
    misses=[
        {"loss": [3.0 - at / 40 for at in range(50)], "held_out_loss": _measured(2.0, 2.0, 2.0, 2.0, 2.0)},
        {"loss": [2.0] * 50, "held_out_loss": _measured(2.0, 2.1, 2.2, 2.3, 2.5)},
        {"loss": [3.0 - at / 40 for at in range(20)], "held_out_loss": _measured(2.0, 2.5)},
    ],
)
