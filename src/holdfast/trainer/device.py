"""The device a run was planned for: found, or its absence told; its memory, waited for. Takes no other one in its place."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from holdfast.core.errors import DeviceGone, told
from holdfast.core.run.timeline import Settings
from holdfast.trainer.exhausted import is_out_of_memory

_PATIENCE_S, _LOOK_S = 30.0, 0.1
_GPU = torch.device("cuda:0")


def planned_device(settings: Settings) -> torch.device:
    """The device that the settings name. Raises DeviceGone.

    Run folders from before there was such a setting take what there is.
    """
    wanted = settings.get("device") or ("cuda" if torch.cuda.is_available() else "cpu")
    if wanted == "cuda" and (absence := _absence()):
        raise DeviceGone(f"torch finds no GPU ({absence})")
    return _GPU if wanted == "cuda" else torch.device("cpu")


def _absence() -> str | None:
    """Why there is no GPU to compute on; None where there is one. A card that is listed may still serve nobody: it is asked for a byte."""
    try:
        torch.empty(1, dtype=torch.uint8, device=_GPU)
    except (RuntimeError, AssertionError) as error:  # AssertionError: a build without GPU code
        return None if is_out_of_memory(error) else told(error)
    return None


def free_bytes(device: torch.device) -> int:
    """What this process may still take of a GPU: what is free, and what its own allocator keeps unused."""
    return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def wait_for_memory(needed: int, free: Callable[[], int], patience_s: float = _PATIENCE_S) -> tuple[float, int]:
    """Wait until `needed` bytes are free: a driver may give back what a killed process held after that is gone. (seconds, bytes missing)"""
    began = time.monotonic()
    while True:
        missing, waited = needed - free(), time.monotonic() - began
        if missing <= 0 or waited >= patience_s:
            return waited, max(0, missing)
        time.sleep(_LOOK_S)
