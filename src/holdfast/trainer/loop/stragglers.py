"""Name a rank that holds the others up, by each one's own times. Decides nothing."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

_EVERY = 16  # steps that are looked at together
_TIMES = 1.5  # of what the others take
_LEAST_S = 0.02  # less is the system's noise


class SlowRanks:
    """Keeps the ranks' times of some steps; tells once when one is slow, and again when another is, or none any more."""

    def __init__(self, event: Callable[..., None]) -> None:
        self.event = event
        self.seen: list[Sequence[float]] = []
        self.told: int | None = None

    def look(self, step: int, seconds: Sequence[float]) -> None:
        """Collect the seconds each rank took to its own gradients, after each step; report an event when the slow rank changes."""
        if len(seconds) < 2:
            return
        self.seen.append(seconds)
        if len(self.seen) < _EVERY:
            return
        each = [statistics.median(times) for times in zip(*self.seen, strict=True)]
        self.seen = []
        slow = slowest(each)
        if slow != self.told:
            self.told = slow
            self.event("rank_slow", step=step, rank=slow, **_facts(each))


def slowest(seconds: Sequence[float]) -> int | None:
    """Return the rank that takes much longer than the others' median; None where none does."""
    rank = max(range(len(seconds)), key=lambda number: seconds[number])
    others = statistics.median(time for number, time in enumerate(seconds) if number != rank)
    return rank if seconds[rank] > _TIMES * others and seconds[rank] - others > _LEAST_S else None


def _facts(each: Sequence[float]) -> dict[str, Any]:
    return {"seconds": [round(one, 4) for one in each], "reason": f"median of {_EVERY} steps of each rank, until its gradients were there"}
