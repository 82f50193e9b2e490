"""How fast the device copies memory and multiplies matrices. Judges nothing: what is fast enough, checks say."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

_REPEATS = 4
_COPIED_BYTES = {"cpu": 64 << 20, "cuda": 1 << 30}
_WIDTHS = {"cpu": 768, "cuda": 8192}
_TYPES = {"cpu": (torch.float32,), "cuda": (torch.float32, torch.bfloat16)}


def probe(device: torch.device) -> dict[str, Any]:
    """Measure speed, best of a few: {outcome, device, copy_bytes_per_second (read and written), flops_per_second: {dtype: rate}}."""
    rates = {str(dtype).removeprefix("torch."): _rate(_WIDTHS[device.type], dtype, device) for dtype in _TYPES[device.type]}
    copied = _copy_rate(_COPIED_BYTES[device.type], device)
    return {"outcome": "ok", "device": device.type, "copy_bytes_per_second": copied, "flops_per_second": rates}


def _copy_rate(size: int, device: torch.device) -> int:
    source, target = torch.ones(size // 4, device=device), torch.ones(size // 4, device=device)
    return int(2 * size / best_seconds(lambda: target.copy_(source)[-1]))


def _rate(width: int, dtype: torch.dtype, device: torch.device) -> int:
    a = torch.ones(width, width, device=device, dtype=dtype)
    return int(2 * width**3 / best_seconds(lambda: (a @ a)[-1, -1]))


def best_seconds(work: Callable[[], torch.Tensor], repeats: int = _REPEATS) -> float:
    """Return the seconds of the fastest repeat; the number that it gives is read, so the device has finished."""
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        float(work())
        times.append(time.perf_counter() - begun)
    return min(times)
