"""The optimizer's step in each snapshot of a run whose state is big beside a step; what a snapshot's parts take."""

from __future__ import annotations

import mmap
import shutil
import time
import zlib
from pathlib import Path
from typing import Any

from stages import training
from stages.common import Place, events, median

_SHM = Path("/dev/shm")


def run(place: Place) -> None:
    steps = place.steps(50, 6)
    rows = place.rows("qwen0.5b", 128, (64,))
    config = place.config("qwen0.5b", rows, adapter={"r": 32}, train={"steps": steps, "effective_batch": 2}, save={"every": 1, "keep": 100})
    summary = place.train("every-step", config)
    found, wrong = 0, []
    for folder in sorted((Path(summary["folder"]) / "checkpoints").glob("step-*")):
        found += 1
        held = _optimizer_step(folder / "state.safetensors")
        if held != int(folder.name.removeprefix("step-")):
            wrong.append(f"{folder.name} holds {held:.0f}")
    place.answer("optimizer-step", len(wrong), f"of {found} checkpoints; {'; '.join(wrong)[:400]}; run {summary['status']}")
    place.answer("checkpoints", found, f"of {steps} steps")
    told = "; ".join(event.get("reason", "") for event in events(summary, "snapshot_interval"))
    place.answer("interval", len(events(summary, "snapshot_interval")), told[:300])
    shutil.rmtree(Path(summary["folder"]) / "checkpoints", ignore_errors=True)  # some gigabytes
    _parts(place)


def _optimizer_step(file: Path) -> float:
    from safetensors import safe_open

    with safe_open(str(file), framework="np") as handle:
        return float(handle.get_tensor("step"))


def _parts(place: Place) -> None:
    """Milliseconds for a block of 256 MiB: cloned on the card, copied to shared memory, looked at, checked."""
    import numpy as np
    import torch

    size = (1 << 20) if place.smoke else (256 << 20)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    block = torch.rand(size // 4, device=device)
    file = (_SHM if _SHM.is_dir() else place.out) / f"holdfast-confidence-{time.time_ns()}"
    with file.open("w+b") as handle:
        handle.truncate(size)
        memory = mmap.mmap(handle.fileno(), size)
    file.unlink()
    host = torch.frombuffer(memory, dtype=torch.float32)

    def took(work: Any) -> float:
        each = []
        for _ in range(3 if place.smoke else 7):
            training.synchronise()
            began = time.perf_counter()
            work()
            training.synchronise()
            each.append(1e3 * (time.perf_counter() - began))
        return round(median(each[1:]), 2)

    began = time.perf_counter()
    host.copy_(block)
    place.answer("first-copy-ms", round(1e3 * (time.perf_counter() - began), 2), "into fresh pages of shared memory")
    copied = took(lambda: block.clone())
    place.answer("stage-ms", None if place.smoke else copied, f"not judged: a copy in main memory, {copied} ms" if place.smoke else "")
    place.answer("pageable-ms", took(lambda: host.copy_(block)))
    if device.type == "cuda":
        refused = int(torch.cuda.cudart().cudaHostRegister(host.data_ptr(), size, 0))
        registered = None if refused else took(lambda: host.copy_(block, non_blocking=True))
        place.answer("registered-ms", registered, f"cudaHostRegister gave {refused}")
        if not refused:
            torch.cuda.cudart().cudaHostUnregister(host.data_ptr())
        place.answer("finite-on-card-ms", took(lambda: block.double().abs().max()))
    array = np.frombuffer(memory, np.float32)
    place.answer("finite-ms", took(lambda: np.add.reduce(array, dtype=np.float64)))
    place.answer("crc-ms", took(lambda: zlib.crc32(memory)))
