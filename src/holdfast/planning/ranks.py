"""How many ranks a run has on a machine, and into how many parts its steps are cut. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.base.errors import BLOCKED, Stop
from holdfast.base.files import Json
from holdfast.config.settings import Settings
from holdfast.config.train import Train
from holdfast.machine.machine_file import training_devices

PARTS = 8  # of a step, where there are several ranks
_FILLED = 0.8  # of the memory that is free at a start: the most that processes of parts may need


def ranks_on(train: Train, machine: Json) -> int:
    """Return how many ranks to start. Raises Stop(1) where there are fewer devices than ranks asked for."""
    return len(devices_for(train, machine))


def devices_for(train: Train, machine: Json, known: Sequence[int] | None = None) -> tuple[int, ...]:
    """Choose the device of each rank, by its number on the machine; where shards are on, a power of two of them.

    known: those that are not gone; where they are fewer than train.ranks_min, all are tried. Raises Stop(1) where there are fewer devices
    than ranks asked for.
    """
    numbers = _alike(machine)
    alike, wanted = len(numbers), ranks_of(train, machine)
    if alike and wanted > alike:
        kinds = ", ".join(gpu.get("name") or gpu.get("arch") or "an unknown GPU" for gpu in training_devices(machine))
        text = f"train.ranks is {wanted}, and this machine has {alike} GPU{'s' if alike > 1 else ''} of one kind ({kinds})"
        raise Stop(BLOCKED, text, f"train.ranks={alike}, or train.ranks=auto")
    there = numbers or list(range(wanted))
    if known is not None and len(known) >= train.ranks_min:
        there = list(known)
    left = min(wanted, len(there))
    return tuple(there[: left if train.reduction_parts == "off" else 1 << (left.bit_length() - 1)])


def devices_alike(machine: Json) -> int:
    """Count the GPUs of the first one's kind; 0 where the run goes on the CPU."""
    return len(_alike(machine))


def _alike(machine: Json) -> list[int]:
    """Return the numbers of the GPUs of the first one's kind: one of another kind may lie between them."""
    kinds = [(gpu.get("arch"), gpu.get("memory_bytes")) for gpu in training_devices(machine)]
    return [number for number, kind in enumerate(kinds) if kind == kinds[0]]


def ranks_of(train: Train, machine: Json) -> int:
    """Return how many ranks are asked for, whether or not there are devices for them."""
    return max(1, devices_alike(machine)) if train.ranks == "auto" else train.ranks


def parts_per_step(train: Train, ranks: int) -> int:
    """Return the number of parts of a step; 1: it is not cut."""
    if train.reduction_parts == "off" or (train.reduction_parts is None and ranks == 1):
        return 1
    return train.reduction_parts or max(PARTS, ranks)


def processes_for(settings: Settings, peak_bytes: int, free_bytes: int | None) -> int:
    """Return how many processes compute the parts of a step: a power of two, one a part or as many as memory has room for.

    1 where what is free is unknown. peak_bytes: of one trainer.
    """
    bounds = [size for size in (free_bytes, settings.memory_limit_bytes) if size is not None]
    most = int(min(bounds) * _FILLED) // max(1, peak_bytes) if free_bytes is not None else 1
    return 1 << max(1, min(settings.at_once, most)).bit_length() - 1


def branches_of(train: Train) -> int:
    """Return the most sums of gradients that a sharded step holds at a time, on any number of ranks alike, so that plans are equal."""
    return parts_per_step(train, 1 if train.ranks == 1 else 2).bit_length() - 1
