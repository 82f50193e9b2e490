"""Set torch up, find the device a run was planned for or tell its absence, wait for its memory. Takes no other device."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch

from holdfast.base.errors import DeviceGone, error_message
from holdfast.callback.first_calls import make_first_calls
from holdfast.config.settings import Settings
from holdfast.processes.rank_environment import device_number, ranks_here
from holdfast.trainer.common.oom import is_out_of_memory

_PATIENCE_S, _LOOK_S = 30.0, 0.1


def prepare_torch(settings: Settings) -> torch.device:
    """Set threads and determinism, and return the device of the plan. Runs before any other torch call. Raises DeviceGone."""
    take_threads(settings.threads_of_each(ranks_here()))
    torch.use_deterministic_algorithms(settings.deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # nothing here reads memory it has not written
    if os.environ.get("TORCH_BLAS_PREFER_HIPBLASLT") == "0":  # torch 2.7 to 2.11 read only its 1 (aten/src/ATen/Context.h)
        torch.backends.cuda.preferred_blas_library("cublas")  # on ROCm: hipBLAS
    device = planned_device(settings)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        _keep_to_exact_kernels()
    return device


def take_threads(threads: int) -> None:
    """Compute in so many threads. The first calls that are made in one alone have been made then."""
    make_first_calls()
    torch.set_num_threads(threads)


def _keep_to_exact_kernels() -> None:
    """Turn off cuDNN attention, wrong on several cards (book/checks/cudnn-attention.yaml), and reduced-precision sums in matmuls."""
    if hasattr(torch.backends.cuda, "enable_cudnn_sdp"):  # since torch 2.5
        torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False


def planned_device(settings: Settings) -> torch.device:
    """Return the device that the settings name. Raises DeviceGone.

    Run folders from before there was such a setting take what there is.
    """
    wanted = settings.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if wanted == "cuda" and (absence := _absence()):
        raise DeviceGone(f"torch finds no GPU ({absence})")
    return own_gpu() if wanted == "cuda" else torch.device("cpu")


def own_gpu() -> torch.device:
    """Return this rank's GPU: the first one in a run of one rank, or where each rank sees only its own."""
    count = torch.cuda.device_count() if "LOCAL_RANK" in os.environ else 1
    return torch.device("cuda", device_number() % max(1, count))


def _absence() -> str | None:
    """Return why there is no GPU to compute on; None where there is one.

    A card that is listed may still be unusable: one byte is allocated on it.
    """
    try:
        torch.empty(1, dtype=torch.uint8, device=own_gpu())
    except (RuntimeError, AssertionError) as error:  # AssertionError: a build without GPU code
        return None if is_out_of_memory(error) else error_message(error)
    return None


def release() -> None:
    """Give back what the caching allocator holds."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def trim_heap() -> None:
    """Give back to the system what was freed of glibc's heap, which a trainer's environment tells it to keep."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def forget_peak() -> bool:
    """Forget the memory that this process had in use at its most; return whether that was possible: on the CPU it is Linux that does it."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.reset_peak_memory_stats()
    trim_heap()  # what was freed and is kept for later would count as in use
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def peak_since(device: torch.device, forgotten: bool) -> int | None:
    """Return the most bytes in use since `forget_peak`, which said `forgotten`; None where that is not known."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if not forgotten:
        return None
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    return next((int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM:")), None)


def free_bytes(device: torch.device) -> int:
    """Return how many bytes of a GPU this process may still take: those that are free, and those its own allocator keeps unused."""
    return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def wait_for_memory(needed: int, free: Callable[[], int], patience_s: float = _PATIENCE_S) -> tuple[float, int]:
    """Wait until `needed` bytes are free: a driver may give back what a killed process held after that is gone. (seconds, bytes missing)"""
    began = time.monotonic()
    while True:
        missing, waited = needed - free(), time.monotonic() - began
        if missing <= 0 or waited >= patience_s:
            return waited, max(0, missing)
        time.sleep(_LOOK_S)
