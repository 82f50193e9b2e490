"""How many ranks a run has on a machine, and into how many parts its steps are cut. Pure."""

from __future__ import annotations

from holdfast.core.config.config import Train
from holdfast.core.errors import BLOCKED, Stop
from holdfast.core.facts.machine_file import training_devices
from holdfast.core.files import Json

SHARDS = 8  # of a step, where there are several ranks


def ranks_on(train: Train, machine: Json, lost: int = 0) -> int:
    """How many ranks to start; where shards are on, a power of two. `lost`: devices that are known to be gone.

    Raises Stop(1) where there are fewer devices than ranks asked for, or than train.ranks_min.
    """
    alike = devices_alike(machine)
    if alike == 0:
        return 1 if train.ranks == "auto" else train.ranks
    wanted = alike if train.ranks == "auto" else train.ranks
    if wanted > alike:
        kinds = ", ".join(gpu.get("name") or gpu.get("arch") or "an unknown GPU" for gpu in training_devices(machine))
        text = f"train.ranks is {wanted}, and this machine has {alike} GPU{'s' if alike > 1 else ''} of one kind ({kinds})"
        raise Stop(BLOCKED, text, f"train.ranks={alike}, or train.ranks=auto")
    left = wanted - lost
    if left < train.ranks_min:
        text = f"{left} of {wanted} devices are left, train.ranks_min is {train.ranks_min}"
        raise Stop(BLOCKED, text, "bring them back, or lower train.ranks_min, then rerun the same command to resume")
    return left if train.shards == "off" else 1 << (left.bit_length() - 1)


def devices_alike(machine: Json) -> int:
    """GPUs of the first one's kind; 0 where the run goes on the CPU."""
    gpus = training_devices(machine)
    kinds = [(gpu.get("arch"), gpu.get("memory_bytes")) for gpu in gpus]
    return sum(kind == kinds[0] for kind in kinds)


def shards_of(train: Train, ranks: int) -> int:
    """Parts of a step; 1: it is not cut."""
    if train.shards == "off" or (train.shards is None and ranks == 1):
        return 1
    return train.shards or max(SHARDS, ranks)
