"""Several GPUs: copies from each to each, and a sum over all ranks. Both have gone wrong without an error."""

from __future__ import annotations

import datetime
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed

_NUMBERS = 1 << 20
_DEADLINE_S = 30
_WRONG = 3  # exit code of a rank whose sum is not what it has to be
_COPIED, _TIMES = 256 << 20, 5  # bytes of a copy that is timed, and how often


def probe(device: torch.device) -> dict[str, Any]:
    """Test sums and copies between GPUs: {outcome, ranks, pairs}. absent: fewer than two GPUs.

    wrong: a copy or the sum differs, or a rank hangs or dies; each is named. pairs: of each two GPUs how fast a copy is, and whether one
    reaches the other's memory. Must be asked before the device is touched.
    """
    count = torch.cuda.device_count() if device.type == "cuda" else 0
    if count < 2:
        return {"outcome": "absent", "detail": "fewer than two GPUs"}
    if failed := sum_over_ranks("nccl", count):
        told = ", ".join(f"rank {rank} {how}" for rank, how in failed.items())
        return {"outcome": "wrong", "detail": f"a sum over {count} ranks: {told}", "ranks": count}
    pairs = [(one, other) for one in range(count) for other in range(count) if one != other]
    bad = [f"{one} to {other}" for one, other in pairs if not _arrives(one, other)]
    if bad:
        return {"outcome": "wrong", "detail": f"copies between GPUs change what they copy: {', '.join(bad)}", "ranks": count}
    return {"outcome": "ok", "ranks": count, "pairs": [_time_copies(one, other) for one, other in pairs]}


def _time_copies(one: int, other: int) -> dict[str, Any]:
    """Time copies between two GPUs: {from, to, bytes_per_second, peer}, the fastest of a few."""
    block = torch.empty(_COPIED, dtype=torch.uint8, device=f"cuda:{one}")
    there = torch.empty(_COPIED, dtype=torch.uint8, device=f"cuda:{other}")
    seconds = []
    for _ in range(_TIMES):
        torch.cuda.synchronize(one)
        began = time.perf_counter()
        there.copy_(block)
        torch.cuda.synchronize(other)
        seconds.append(time.perf_counter() - began)
    peer = torch.cuda.can_device_access_peer(one, other)
    return {"from": one, "to": other, "bytes_per_second": round(_COPIED / min(seconds)), "peer": peer}


def _arrives(one: int, other: int) -> bool:
    sent = torch.arange(_NUMBERS, device=f"cuda:{one}")
    return bool((sent.to(f"cuda:{other}").cpu() == torch.arange(_NUMBERS)).all())


def sum_over_ranks(backend: str, ranks: int, patience_s: int = _DEADLINE_S) -> dict[int, str]:
    """Sum over processes; return the ranks where that fails, is wrong or takes too long, each with what happened.

    Asked in a process that has computed nothing yet: threads of its own would be missing in the ranks it forks.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        children = {rank: _start(backend, rank, ranks, Path(folder) / "store", patience_s) for rank in range(ranks)}
        ended = {rank: os.waitpid(pid, 0)[1] for rank, pid in children.items()}
    return {rank: _describe_end(status, patience_s) for rank, status in ended.items() if status != 0}


def _describe_end(status: int, patience_s: int) -> str:
    """Say in words how a rank's process ended."""
    if os.WIFSIGNALED(status):
        by = os.WTERMSIG(status)
        return f"hangs (ended after {patience_s} s)" if by == signal.SIGALRM else f"is killed by {signal.Signals(by).name}"
    return {_WRONG: "gets a wrong sum"}.get(os.WEXITSTATUS(status), "fails")


def _start(backend: str, rank: int, ranks: int, store: Path, patience_s: int) -> int:
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(patience_s)
        code = 1
        try:
            code = 0 if _sum_is_right(backend, rank, ranks, store) else _WRONG
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
