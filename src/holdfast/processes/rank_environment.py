"""The environment in which ranks find each other: the variables that torchrun also sets. Standard library only; starts nothing."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

STORE_DESCRIPTOR = "HOLDFAST_STORE_FD"  # the inherited socket on which the first rank is to listen
STARTED_BY = "HOLDFAST_STARTED_BY"  # the process that started these ranks; without it another launcher did


def listen() -> socket.socket:
    """Open a socket of this machine alone, already listening, so that nobody takes its port meanwhile. A child may inherit it."""
    return socket.create_server(("127.0.0.1", 0), backlog=2048)


def rank_variables(number: int, device: int, size: int, meeting: socket.socket, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of rank `number` of `size` in one box, whose device is the `device`-th.

    The user's own choice of network interfaces wins.
    """
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    found = {
        "RANK": number,
        "LOCAL_RANK": device,
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": size,
        "GROUP_RANK": 0,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": meeting.getsockname()[1],
        STARTED_BY: os.getpid(),
    }
    if number == 0:
        found[STORE_DESCRIPTOR] = meeting.fileno()
    defaults = {name: loopback for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if name not in environment}
    return defaults | {name: str(value) for name, value in found.items()}


def recorder_variables(folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return variables that have torch's flight recorder write each rank's last collectives into `folder` when one of them times out.

    Old names and new ones: torch 2.8 renamed some. Nothing where the user has chosen anything of it.
    """
    chosen = {"TRACE_BUFFER_SIZE": "2000", "DUMP_ON_TIMEOUT": "1", "DEBUG_INFO_TEMP_FILE": f"{folder}/nccl_trace_rank_"}
    found = {f"TORCH_NCCL_{name}": value for name, value in chosen.items()}
    found |= {"TORCH_FR_BUFFER_SIZE": chosen["TRACE_BUFFER_SIZE"], "TORCH_FR_DUMP_TEMP_FILE": chosen["DEBUG_INFO_TEMP_FILE"]}
    return {} if set(found) & set(environment) else found


def rank_of(environment: Mapping[str, str]) -> int:
    """Return the number of the rank that this process is, as whoever started it says."""
    return int(environment.get("RANK", "0"))


def ranks_here() -> int:
    """Return how many ranks that holdfast started this process is one of; 1 for any other."""
    return int(os.environ["WORLD_SIZE"]) if STARTED_BY in os.environ else 1


def device_number() -> int:
    """Return which of its machine's devices is this process's."""
    return int(os.environ.get("LOCAL_RANK", "0"))
