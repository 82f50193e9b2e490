"""How often to save, from what saving and failing cost. Pure arithmetic; measures and saves nothing."""

from __future__ import annotations

import math

_PRIOR_S = 3600.0  # of trouble-free running that a run is credited with before it has shown its own rate of failures
SNAPSHOT_SHARE = 0.01  # of a step's time, the most a snapshot may cost it
_NEGLIGIBLE_S = 1e-3  # a cost below this is noise of the clock beside any step


def mean_time_between_failures(running_s: float, failures: int) -> float:
    """Estimate the seconds between failures as seen so far; a run without one counts as having survived an hour more than it has."""
    return (running_s + _PRIOR_S) / (failures + 1)


def checkpoint_interval(save_s: float, failure_s: float) -> float:
    """Compute the seconds between checkpoints that lose the least to saving and to failures together.

    sqrt(2 C M) - C, for C seconds a save and M between failures: J. W. Young, CACM 17(9), 1974; J. T. Daly, FGCS 22(3), 2006.
    """
    if save_s >= failure_s / 2:
        return failure_s
    return math.sqrt(2 * save_s * failure_s) - save_s


def snapshot_interval(cost_s: float, step_s: float) -> int:
    """Compute the steps between snapshots whose cost stays below `SNAPSHOT_SHARE` of the time of the steps between; 1 where it can."""
    if cost_s <= _NEGLIGIBLE_S or step_s <= 0:
        return 1
    return max(1, math.ceil(cost_s / (SNAPSHOT_SHARE * step_s)))
