"""What rounds may cost: their disk, which is made free of what nothing needs any more, and their hours of training."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from holdfast.base.errors import BLOCKED, Stop
from holdfast.export.registry import read_registry, registry_file
from holdfast.learn.policy import Policy
from holdfast.learn.rounds import Round
from holdfast.run.folder import RunFolder

_WEEK_S = 7 * 86400
_GB = 10**9


def make_room(policy: Policy, rounds: list[Round]) -> None:
    """Remove states of refused rounds beyond `retain`; over budget, those that are kept, too, then checkpoints of promoted ones.

    Rows, fates, verdicts and promoted adapters stay, also of a refused round that somebody has put in place by hand.
    """
    over = [each for each in rounds if each.over]
    promoted = [each for each in over if (each.of("decided") or {}).get("promoted")]
    needed = {str((each.of("trained") or {}).get("start_run")) for each in promoted} | {str(each.run) for each in promoted}
    needed |= read_registry(registry_file(os.environ)).runs_in_place(policy.name)
    refused = [each for each in over if str(each.run) not in needed]
    for each in refused[: max(0, len(refused) - policy.retain)]:
        shutil.rmtree(each.run, ignore_errors=True)
    spare = _beyond(policy)
    experts = [each.experts for each in over if each not in refused][:-1]  # those of the last version stay; a rollback has them made again
    for place in [*(each.run for each in refused), *experts, *(RunFolder(each.run).checkpoints for each in over)]:
        if spare <= 0:
            return
        spare -= bytes_in(place)
        shutil.rmtree(place, ignore_errors=True)


def refuse_no_room(policy: Policy, rounds: list[Round]) -> None:
    """Make room; raise Stop(1) where what has to stay is more than the budget of disk, which may be a smaller one by now."""
    make_room(policy, rounds)
    if _beyond(policy) > 0:
        held = bytes_in(Path(policy.folder or "")) / _GB
        text = f"{policy.folder} holds {held:.2f} GB, budget.disk_gb allows {policy.budget.disk_gb:g}, and nothing is left to remove"
        raise Stop(BLOCKED, text, "raise budget.disk_gb")


def _beyond(policy: Policy) -> float:
    """Return how many bytes the policy's folder holds beyond its budget of disk; at most 0 where it is within, or has none."""
    return 0 if policy.budget.disk_gb is None else bytes_in(Path(policy.folder or "")) - policy.budget.disk_gb * _GB


def bytes_in(folder: Path) -> int:
    """Sum the sizes of a folder's files, in bytes."""
    return sum(file.lstat().st_size for file in folder.rglob("*") if file.is_file() and not file.is_symlink())


def time_is_up(policy: Policy, rounds: list[Round]) -> str:
    """Return why no round may begin now: a week's hours of training are spent in the last seven days; "" where there is time left.

    Rounds whose time lies ahead count, too: the clock was set back since.
    """
    allowed = policy.budget.hours_a_week
    if allowed is None:
        return ""
    recent = [each for each in rounds if time.time() - _trained_at(each) < _WEEK_S]
    hours = sum(map(seconds_of, recent)) / 3600
    told = f"{hours:.2f} hours were trained in the last seven days, budget.hours_a_week allows {allowed:g}"
    return told if hours >= allowed else ""


def _trained_at(one: Round) -> float:
    """Return when a round, or an expert of it, trained last; when it was collected where no step tells that."""
    told = [(one.of("trained") or {}).get("time"), *((RunFolder(run).last_step() or {}).get("time") for run in one.runs)]
    known = [float(time) for time in told if time is not None]
    return max(known) if known else float((one.of("collected") or {}).get("time", 0.0))


def seconds_of(one: Round) -> float:
    """Return how long a round and its experts have trained; a run that was removed to make room has trained all the same."""
    kept = (one.of("trained") or {}).get("seconds")
    return (trained_seconds(one.run) if kept is None else float(kept)) + sum(map(trained_seconds, one.runs[1:]))


def trained_seconds(run: Path) -> float:
    """Sum what the steps of a run took."""
    return sum(float(row.get("seconds") or 0.0) for row in RunFolder(run).steps())
