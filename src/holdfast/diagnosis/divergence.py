"""Whether the loss has left its level for good: a spike that does not go back, or steady divergence. Pure; it stops nothing itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from holdfast.base.files import Json

WIDTH = 20  # steps whose median is a level
PATIENCE = 60  # steps a raised level has to last; the spikes on record that went back did so in fewer, or were falling by then
BEFORE = 3  # steps before the onset at which a state is sound: the update that did it may have come a little earlier
SLOWER = 0.5  # times the learning rate, where nothing else is known to help
RATES = tuple(SLOWER / 10**at for at in range(4))  # shares of the learning rate that are tried
DEAD = 10  # steps in a row without any gradient, beside a raised loss: it does not come back from there
FROM_THE_START = 240  # steps a run may have made for its beginning to count as a state from before
_SHORT = 5  # steps whose median tells a raised level early
_TIMES, _BY = 1.4, 0.5  # a raised level against the best one: factor and difference
_FALLING = 0.95  # of its level earlier in the trouble: it is on its way back
_ILL = 2  # newest losses above the limit that say so, beside a failure
_SUDDEN = 5  # steps a spike takes to rise


@dataclass(frozen=True)
class Trouble:
    """The loss is above its level since step `onset`. usual: the level before; limit: above it the loss is ill.

    lasting: it has been so for `PATIENCE` steps and does not fall. start: the level before is but the loss of the first step, before
    anything was learned.
    """

    kind: Literal["spike", "divergence", "start"]
    onset: int
    step: int
    usual: float
    limit: float
    now: float
    lasting: bool

    def words(self) -> str:
        what = "has been climbing" if self.kind == "divergence" else "jumped"
        return f"the loss {what} from about {self.usual:.3g} to {self.now:.3g} since step {self.onset}"


def trouble(steps: Sequence[Json]) -> Trouble | None:
    """Return what is wrong with the course of the loss in these rows of steps.jsonl; None where nothing is, or too few are known."""
    rows = [row for row in steps if row.get("loss") is not None]
    losses = [float(row["loss"]) for row in rows]
    levels = [median(losses[at : at + WIDTH]) for at in range(0, len(losses) - WIDTH - _SHORT + 1, _SHORT)]
    dead = _dead(rows)
    if rows and rows[0]["step"] == 1 and (not levels or min(levels) > _limit(losses[0])):
        return _from_the_start(rows, losses, DEAD if dead else PATIENCE)
    if not levels:
        return None
    usual = min(levels)
    limit = _limit(usual)
    if median(losses[-_SHORT:]) <= limit:
        return None
    onset = _onset(losses, (usual + limit) / 2, limit)
    ill = losses[onset:]
    now = median(ill[-WIDTH:])
    sudden = median(losses[onset : onset + _SUDDEN]) > limit
    half = len(ill) // 2
    lasting = len(ill) >= (DEAD if dead else PATIENCE) and now > limit and median(ill[half:]) >= _FALLING * median(ill[:half])
    return Trouble("spike" if sudden else "divergence", rows[onset]["step"], rows[-1]["step"], usual, limit, now, lasting)


def _from_the_start(rows: list[Json], losses: list[float], patience: int) -> Trouble | None:
    """Find trouble in a run that never stayed at the loss it began with. One step tells little, so only what lasts counts; but whether it
    falls does not: what was learned before is lost, and trials show whether a lower rate keeps it."""
    limit = _limit(losses[0])
    onset = 1 + max(at for at, loss in enumerate(losses) if loss <= limit)
    ill = losses[onset:]
    if len(ill) < patience:
        return None
    return Trouble("start", rows[onset]["step"], rows[-1]["step"], losses[0], limit, median(ill[-WIDTH:]), True)


def _dead(rows: list[Json]) -> bool:
    """Return whether the newest steps had no gradient at all, and earlier ones had."""
    norms = [row.get("grad_norm") for row in rows]
    return len(norms) >= DEAD and all(norm == 0 for norm in norms[-DEAD:]) and any(norms)


def left_level(losses: Sequence[tuple[int, float]]) -> tuple[int, float] | None:
    """Return (first step, limit) where the newest losses are all above the limit of the best level before; None where they are not.

    For a step that failed, in a course that may be too short and too young for `trouble`. losses: (step, loss), in order.
    """
    width = max(1, min(_SHORT, len(losses) // 3))
    values = [loss for _, loss in losses]
    best = min((median(values[at : at + width]) for at in range(len(values) - width + 1)), default=0.0)
    limit = _limit(best)
    calm = max((at for at, value in enumerate(values) if value <= limit), default=-1)
    return (losses[calm + 1][0], limit) if 0 <= calm < len(losses) - _ILL else None


def above_start(losses: Sequence[float]) -> bool:
    """Return whether the newest losses are far above the first one."""
    return median(losses[-_SHORT:]) > _limit(losses[0])


def _limit(level: float) -> float:
    """Return the loss above which a run has left this level."""
    return max(_TIMES * level, level + _BY)


def _onset(losses: list[float], calm: float, limit: float) -> int:
    """Find where the loss left its level for the last time: first value above the limit since, or above `calm` where it climbs slowly."""
    last = next((at for at in range(len(losses) - 1, _SHORT - 2, -1) if median(losses[at - _SHORT + 1 : at + 1]) <= calm), _SHORT - 1)
    since = range(max(0, last - _SHORT // 2), len(losses))
    left = next((at for at in since if losses[at] > limit), since[0])
    return left if left - last <= _SHORT else last
