"""Read facts about this machine. Judges none of them. What needs torch is asked of a child with a deadline."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import orjson

from holdfast.core.cache import cache_folder
from holdfast.core.files import Json, read_json, write_json
from holdfast.core.hostmemory import host_memory
from holdfast.core.identity import boot_id

_PACKAGES = ("torch", "transformers", "peft", "accelerate", "safetensors", "tokenizers", "bitsandbytes", "flash-attn", "torchao")
_PROBE_DEADLINE_S = 120


def read_machine(run: Path | None = None, with_torch: bool = True) -> Json:
    """Facts in the form of a machine file. A fact that cannot be read is null."""
    memory = host_memory()
    return {
        "os": _system(),
        "python": platform.python_version(),
        "memory_bytes": _least(memory.get("MemTotal"), _cgroup_memory()),
        "swap_bytes": memory.get("SwapTotal"),
        "shm_bytes": _size(Path("/dev/shm")),
        "disk_free_bytes": shutil.disk_usage(run).free if run and run.exists() else None,
        "cpu": {"threads": usable_threads(), "name": _cpu_name()},
        "packages": {name: _version(name) for name in _PACKAGES},
        **(_ask_torch() if with_torch else {"torch": None, "gpus": []}),
    }


def usable_threads() -> int:
    """CPU threads this process may use: its affinity, cut by the cgroup's quota."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(count, int(quota) // int(period)))
    except (OSError, ValueError):
        return count


def _ask_torch() -> Json:
    """Torch's build and devices, or under torch_error what went wrong when it was imported.

    A good answer is kept until torch, the interpreter, the boot or a variable that hides devices changes: asking costs an import.
    """
    kept = _kept_answer()
    answer = read_json(kept) if kept else None
    if answer is None:
        answer = _ask_torch_now()
        if answer["torch"] is not None and kept:
            with contextlib.suppress(OSError):  # no home, or a full one: asked again the next time
                kept.parent.mkdir(parents=True, exist_ok=True)
                write_json(kept, answer, durable=False)
    return answer


def _kept_answer() -> Path | None:
    devices = {name: value for name, value in os.environ.items() if name.startswith(("CUDA_", "HIP_", "ROCR_", "HSA_"))}
    key = repr((sys.executable, _version("torch"), boot_id(), sorted(devices.items())))
    folder = cache_folder(os.environ)
    return folder / f"torch-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json" if folder else None


def _ask_torch_now() -> Json:
    command = [sys.executable, "-m", "holdfast.trainer", "probe"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_PROBE_DEADLINE_S, check=False)
    except subprocess.TimeoutExpired:
        return {"torch": None, "gpus": [], "torch_error": f"importing torch took longer than {_PROBE_DEADLINE_S} s"}
    if done.returncode == 0:
        answer: Json = orjson.loads(done.stdout)
        return answer
    last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
    return {"torch": None, "gpus": [], "torch_error": last[0]}


def _system() -> Json:
    release = platform.release()
    container = Path("/.dockerenv").exists() or Path("/run/.containerenv").exists()
    return {"kernel": release, "distro": _distro(), "wsl": "microsoft" in release.lower(), "container": container}


def _distro() -> str | None:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME")
    except OSError:
        return platform.platform()


def _cgroup_memory() -> int | None:
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            limit = int(Path(name).read_text())
        except (OSError, ValueError):
            continue
        return limit if limit < 1 << 60 else None
    return None


def _least(*values: int | None) -> int | None:
    return min((value for value in values if value is not None), default=None)


def _size(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).total
    except OSError:
        return None


def _cpu_name() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
