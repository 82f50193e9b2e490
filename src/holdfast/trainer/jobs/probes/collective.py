"""Several GPUs: copies from each to each, and a sum over all ranks. Both have gone wrong without an error."""

from __future__ import annotations

import datetime
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed

_NUMBERS = 1 << 20
_DEADLINE_S = 30


def probe(device: torch.device) -> dict[str, Any]:
    """{outcome, ranks}. absent: fewer than two GPUs. wrong: a copy or the sum differs. Must be asked before the device is touched."""
    count = torch.cuda.device_count() if device.type == "cuda" else 0
    if count < 2:
        return {"outcome": "absent", "detail": "fewer than two GPUs"}
    if failed := sum_over_ranks("nccl", count):
        return {"outcome": "wrong", "detail": f"a sum over {count} ranks fails on rank {', '.join(map(str, failed))}", "ranks": count}
    pairs = [(one, other) for one in range(count) for other in range(count) if one != other]
    bad = [f"{one} to {other}" for one, other in pairs if not _arrives(one, other)]
    if bad:
        return {"outcome": "wrong", "detail": f"copies between GPUs change what they copy: {', '.join(bad)}", "ranks": count}
    return {"outcome": "ok", "ranks": count}


def _arrives(one: int, other: int) -> bool:
    sent = torch.arange(_NUMBERS, device=f"cuda:{one}")
    return bool((sent.to(f"cuda:{other}").cpu() == torch.arange(_NUMBERS)).all())


def sum_over_ranks(backend: str, ranks: int) -> list[int]:
    """The ranks on which a sum over all of them fails, is wrong, or takes too long: each in a process of its own.

    Asked in a process that has computed nothing yet: threads of its own would be missing in the ranks it forks.
    """
    with tempfile.TemporaryDirectory() as folder:
        children = {rank: _start(backend, rank, ranks, Path(folder) / "store") for rank in range(ranks)}
        return [rank for rank, pid in children.items() if os.waitpid(pid, 0)[1] != 0]


def _start(backend: str, rank: int, ranks: int, store: Path) -> int:
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_DEADLINE_S)
        code = 1
        try:
            code = 0 if _sum_is_right(backend, rank, ranks, store) else 1
        finally:
            os._exit(code)
    return pid


def _sum_is_right(backend: str, rank: int, ranks: int, store: Path) -> bool:
    patience = datetime.timedelta(seconds=_DEADLINE_S)
    torch.distributed.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=patience)
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    numbers = torch.full((_NUMBERS,), float(rank + 1), device=device)
    torch.distributed.all_reduce(numbers)
    return bool((numbers.cpu() == ranks * (ranks + 1) / 2).all())
