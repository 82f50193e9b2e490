"""The place that another launcher gave this process in a group: torchrun, Slurm, Ray, Kubernetes and others. Reads variables only."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.base.errors import USAGE, Stop

_OF_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_PORTS = 20_000, 20_000  # the first, and how many: below those that systems give out by themselves


@dataclass(frozen=True)
class RankInfo:
    """Rank `number` of `size`, the `local`-th on its machine; the first one listens at address:port."""

    launcher: str
    number: int
    size: int
    local: int
    address: str
    port: int

    def environment(self) -> dict[str, str | None]:
        """Return the variables that torchrun sets."""
        found = (self.number, self.size, self.local, self.address, self.port)
        return {
            name: str(value) for name, value in zip(("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"), found, strict=True)
        }


def rank_info_of(environment: Mapping[str, str]) -> RankInfo | None:
    """Read this process's rank, None where it was started by itself. Raises Stop(2) where the variables cannot be right."""
    size = environment.get("WORLD_SIZE", "1")
    if "RANK" in environment and size != "1":
        return _of_variables(environment)
    if int(_number(environment, "SLURM_STEP_NUM_TASKS", "1")) > 1:
        return _of_slurm(environment)
    if int(_number(environment, "SKYPILOT_NUM_NODES", "1")) > 1:
        return _of_skypilot(environment)
    if (nodes := environment.get("PET_NNODES", "1")) not in ("", "1"):
        text = f"PET_NNODES is {nodes}: this process stands for a node, and torchrun, which reads these variables, did not start it"
        raise Stop(USAGE, text, "start it by torchrun: torchrun -m -- holdfast train CONFIG --run DIR")
    return None


def _of_variables(environment: Mapping[str, str]) -> RankInfo:
    if missing := [name for name in _OF_TORCHRUN if name not in environment]:
        text = f"RANK and WORLD_SIZE are set, {' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} not"
        raise Stop(USAGE, text, "start holdfast with torchrun (or srun, accelerate launch), or unset RANK and WORLD_SIZE")
    number, size, port = (int(_number(environment, name)) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    if not 0 <= number < size:
        raise Stop(USAGE, f"RANK is {number}, WORLD_SIZE {size}: ranks count from 0", "look at what starts these processes")
    local = int(_number(environment, "LOCAL_RANK", "0"))
    known = {
        "HOLDFAST_RAY": "Ray",
        "ACCELERATE_MIXED_PRECISION": "accelerate",
        "TORCHELASTIC_RUN_ID": "torchrun",
        "SLURM_JOB_ID": "Slurm",
        "KUBERNETES_SERVICE_HOST": "Kubernetes",
    }
    launcher = next((name for variable, name in known.items() if variable in environment), "a launcher")
    return RankInfo(launcher, number, size, local, environment["MASTER_ADDR"], port)


def _of_slurm(environment: Mapping[str, str]) -> RankInfo:
    """Read the rank of a task of srun, which names no meeting place: the step's first host, at a port derived from job and step."""
    number, size, local = (int(_number(environment, name)) for name in ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"))
    job, step = (int(_number(environment, name, "0")) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    first, count = _PORTS
    address = environment.get("MASTER_ADDR") or first_host(environment.get("SLURM_STEP_NODELIST", ""))
    port = int(_number(environment, "MASTER_PORT", str(first + (job * 31 + step) % count)))
    return RankInfo("Slurm", number, size, local, address, port)


def _of_skypilot(environment: Mapping[str, str]) -> RankInfo:
    """Read the rank of a SkyPilot task, started once on each node: one GPU a node. Raises Stop(2) where there are more."""
    number, size, cards = (
        int(_number(environment, name)) for name in ("SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES", "SKYPILOT_NUM_GPUS_PER_NODE")
    )
    if cards > 1:
        text = f"SkyPilot started one process on each of {size} nodes with {cards} GPUs"
        many = "torchrun --nnodes=$SKYPILOT_NUM_NODES --node-rank=$SKYPILOT_NODE_RANK --nproc-per-node=$SKYPILOT_NUM_GPUS_PER_NODE"
        first = '--master-addr=$(echo "$SKYPILOT_NODE_IPS" | head -n1) --master-port=8008'
        raise Stop(USAGE, text, f"start a rank on each: {many} {first} -m -- holdfast train CONFIG --run DIR")
    hosts = environment.get("SKYPILOT_NODE_IPS", "").split()
    if not hosts and "MASTER_ADDR" not in environment:
        raise Stop(USAGE, "SkyPilot names no addresses of its nodes (SKYPILOT_NODE_IPS)", "set MASTER_ADDR to the first one")
    port = int(_number(environment, "MASTER_PORT", "8008"))
    return RankInfo("SkyPilot", number, size, 0, environment.get("MASTER_ADDR") or hosts[0], port)


def first_host(nodes: str) -> str:
    """Return the first of a list of hosts as Slurm writes it: node[03-07,12],other gives node03. Raises Stop(2) for an empty one."""
    found = re.fullmatch(r"([^\[,]+)(?:\[([^\],-]+)[^\]]*\]([^\[,]*))?(?:,.*)?", nodes.strip())
    if found is None:
        raise Stop(USAGE, f"Slurm names no hosts of this step (SLURM_STEP_NODELIST is {nodes!r})", "set MASTER_ADDR to the first one")
    return "".join(part or "" for part in found.groups())


def _number(environment: Mapping[str, str], name: str, instead: str | None = None) -> str:
    value = environment.get(name, instead)
    if value is None or not value.isdecimal():
        raise Stop(USAGE, f"{name} is {value!r}, not a number", "look at what starts these processes")
    return value
