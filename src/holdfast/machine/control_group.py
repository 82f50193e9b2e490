"""Limits of the control groups that this process is in, and of those above: a container's, a unit's, a batch job's. Judges nothing."""

from __future__ import annotations

from pathlib import PurePosixPath

from holdfast.machine.place import Place

_ROOT = "/sys/fs/cgroup"
_LIMITS = ("memory.max", "memory.high", "memory.limit_in_bytes")
_NONE = 1 << 60  # bytes; from here on version 1 means that there is no limit


def group_folders(place: Place, controller: str) -> list[str]:
    """List the folders of this process's control groups for a controller, its own first, and the mount's root last.

    In a container the path may be the host's, and not exist here; the root then is its own.
    """
    for line in (place.text("/proc/self/cgroup") or "").splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controller in controllers.split(","):
            return _upwards(f"{_ROOT}/{controller}", path)
        if number == "0" and not controllers and place.exists(f"{_ROOT}/cgroup.controllers"):
            return _upwards(_ROOT, path)
    return [_ROOT, f"{_ROOT}/{controller}"]


def _upwards(root: str, path: str) -> list[str]:
    inside = PurePosixPath(path.lstrip("/"))
    return [f"{root}/{part}" for part in (inside, *inside.parents) if str(part) != "."] + [root]


def memory_limit(place: Place) -> int | None:
    """Return the fewest bytes that one of the groups allows, or slows down from; None where none limits them."""
    files = [f"{folder}/{name}" for folder in group_folders(place, "memory") for name in _LIMITS]
    return min((limit for file in files if (limit := place.number(file)) is not None and 0 < limit < _NONE), default=None)


def processors(place: Place) -> float | None:
    """Return the fewest processors that one of the groups allows; None where none limits them."""
    found = []
    for folder in group_folders(place, "cpu"):
        told = (place.text(f"{folder}/cpu.max") or "").split()
        quota, period = told if len(told) == 2 else (place.text(f"{folder}/cpu.cfs_{name}_us") or "" for name in ("quota", "period"))
        if quota.isdigit() and period.isdigit() and int(period):
            found.append(int(quota) / int(period))
    return min(found, default=None)
