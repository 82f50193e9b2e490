"""Facts about the operating system, memory and device files. Reads files; runs nothing."""

from __future__ import annotations

import grp
import os
import platform
import re
import shutil
from pathlib import Path, PurePosixPath

from holdfast.base.files import Json
from holdfast.machine.facts import BF16_FLAGS
from holdfast.machine.host_memory import host_memory
from holdfast.machine.place import Place

_DEVICES = ("/dev/kfd", "/dev/dxg", "/dev/nvidiactl")  # told whether they are there or not
_FURTHER_DEVICES = ("/dev/nvidia-uvm",)
_DEVICE_PATTERNS = ("dri/renderD*", "nvidia[0-9]*")
# Variables that steer drivers, runtimes and torch; nothing else of the user's environment is written down.
_PREFIXES = (
    *("HSA_", "HSAKMT_", "AMD_", "AMDGPU_", "HIP_", "HIPBLAS", "ROCR_", "ROCM_", "ROCBLAS_", "RCCL_", "MIOPEN_", "GPU_"),
    *("CUDA_", "CUBLAS_", "NVIDIA_", "NCCL_", "PYTORCH_", "TORCH", "TRITON_", "BNB_", "FLASH_ATTENTION_", "DISABLE_ADDMM_"),
    *("OMP_", "MKL_", "ACCELERATE_", "XLA_"),
)
_NAMES = (
    *("ATEN_CPU_CAPABILITY", "LD_LIBRARY_PATH", "LD_PRELOAD", "GGML_CUDA_ENABLE_UNIFIED_MEMORY", "MALLOC_ARENA_MAX"),
    "TOKENIZERS_PARALLELISM",
)
_WSL_LIBRARIES = ("/usr/lib/wsl/lib/libdxcore.so", "/opt/rocm/lib/librocdxg.so", "/usr/lib/librocdxg.so")
_PARAMETERS = (
    *("iommu", "amd_iommu", "intel_iommu", "amdgpu", "amdttm", "ttm", "nvidia", "nouveau", "nomodeset", "pci=", "module_blacklist"),
    "modprobe",
)
_GROUPS, LIMITS = "/sys/fs/cgroup", ("memory.max", "memory.high", "memory.limit_in_bytes")  # control groups, of both versions
_NO_LIMIT = 1 << 60  # bytes; from here on version 1 means that there is none
_SECRETS = ("TOKEN", "SECRET", "PASSWORD", "_KEY", "CREDENTIAL")


def read_system(place: Place, run: Path | None) -> Json:
    """Read the keys os, python, memory_bytes, swap_bytes, shm_bytes, disk_free_bytes, cpu, devices and env of a machine file."""
    memory = host_memory(place.path("/proc/meminfo"))
    return {
        "os": _os(place),
        "python": platform.python_version(),
        "memory_bytes": _least(memory.get("MemTotal"), memory_limit(place)),
        "swap_bytes": memory.get("SwapTotal"),
        "shm_bytes": _total(place.path("/dev/shm")),
        "disk_free_bytes": _free(run or Path.cwd()),
        "cpu": read_cpu(place),
        "devices": _devices(place),
        "env": steering(place),
    }


def usable_threads() -> int:
    """Count the CPU threads this process may use: its affinity, cut by its control groups' quotas."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(count, int(processors(Place()) or count)))


def steering(place: Place) -> dict[str, str]:
    """Return the variables of the environment that steer drivers, runtimes and torch."""
    return {
        name: value
        for name, value in sorted(place.environ.items())
        if (name.startswith(_PREFIXES) or name in _NAMES) and not any(word in name for word in _SECRETS)
    }


def _os(place: Place) -> Json:
    kernel = place.text("/proc/sys/kernel/osrelease") or platform.release()
    balancing = place.number("/proc/sys/kernel/numa_balancing")
    return {
        "kernel": kernel,
        "distro": _distro(place),
        "system": platform.system(),
        "wsl": "microsoft" in kernel.lower(),
        "wsl_libraries": [path for path in _WSL_LIBRARIES if place.exists(path)],
        "blacklisted": _blacklisted(place),
        "container": _in_container(place),
        "init": place.text("/proc/1/comm"),
        "command_line": _command_line(place),
        "numa_balancing": None if balancing is None else bool(balancing),
        "groups": _groups(),
    }


def _command_line(place: Place) -> str | None:
    """Read the kernel's parameters that concern GPUs; the others may be private."""
    text = place.text("/proc/cmdline")
    return None if text is None else " ".join(word for word in text.split() if word.startswith(_PARAMETERS))


def _blacklisted(place: Place) -> list[str]:
    """List the GPU drivers that modprobe is told not to load."""
    texts = [place.text(file) or "" for file in place.entries("/etc/modprobe.d") if file.suffix == ".conf"]
    return sorted({name for text in texts for name in re.findall(r"^\s*blacklist\s+(amdgpu|nvidia)\s*$", text, re.M)})


def _distro(place: Place) -> str | None:
    for line in (place.text("/etc/os-release") or "").splitlines():
        name, _, value = line.partition("=")
        if name == "PRETTY_NAME":
            return value.strip("\"'")
    return platform.platform() if place.real else None


def _in_container(place: Place) -> bool:
    marks = ("/.dockerenv", "/run/.containerenv", "/run/systemd/container")
    first = place.text("/proc/1/environ") or ""
    return any(place.exists(mark) for mark in marks) or "container=" in first or "KUBERNETES_SERVICE_HOST" in place.environ


def _groups() -> list[str]:
    names = []
    for number in {os.getegid(), *os.getgroups()}:
        try:
            names.append(grp.getgrgid(number).gr_name)
        except KeyError:
            names.append(str(number))
    return sorted(names)


def group_folders(place: Place, controller: str) -> list[str]:
    """List the folders of this process's control groups for a controller, its own first, and the mount's root last.

    In a container the path may be the host's, and not exist here; the root then is its own.
    """
    for line in (place.text("/proc/self/cgroup") or "").splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controller in controllers.split(","):
            return _upwards(f"{_GROUPS}/{controller}", path)
        if number == "0" and not controllers and place.exists(f"{_GROUPS}/cgroup.controllers"):
            return _upwards(_GROUPS, path)
    return [_GROUPS, f"{_GROUPS}/{controller}"]


def _upwards(root: str, path: str) -> list[str]:
    inside = PurePosixPath(path.lstrip("/"))
    return [f"{root}/{part}" for part in (inside, *inside.parents) if str(part) != "."] + [root]


def memory_limit(place: Place) -> int | None:
    """Return the fewest bytes that one of the groups allows, or slows down from; None where none limits them."""
    files = [f"{folder}/{name}" for folder in group_folders(place, "memory") for name in LIMITS]
    return min((limit for file in files if (limit := place.number(file)) is not None and 0 < limit < _NO_LIMIT), default=None)


def processors(place: Place) -> float | None:
    """Return the fewest processors that one of the groups allows; None where none limits them."""
    found = []
    for folder in group_folders(place, "cpu"):
        told = (place.text(f"{folder}/cpu.max") or "").split()
        quota, period = told if len(told) == 2 else (place.text(f"{folder}/cpu.cfs_{name}_us") or "" for name in ("quota", "period"))
        if quota.isdigit() and period.isdigit() and int(period):
            found.append(int(quota) / int(period))
    return min(found, default=None)


def _least(*values: int | None) -> int | None:
    return min((value for value in values if value is not None), default=None)


def _total(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).total
    except OSError:
        return None


def _free(folder: Path) -> int | None:
    """Free bytes of the disk a folder is or will be on."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def read_cpu(place: Place) -> Json:
    """Read {threads, name, bf16}; bf16: whether there are units that multiply it, None where the CPU does not say."""
    flags = _cpu_line(place, "flags", "Features")
    name = _cpu_line(place, "model name") or platform.processor() or None
    return {"threads": usable_threads(), "name": name, "bf16": None if flags is None else not BF16_FLAGS.isdisjoint(flags.split())}


def _cpu_line(place: Place, *names: str) -> str | None:
    """Return the first processor's entry of one of these names; None where there is none."""
    lines = (place.text("/proc/cpuinfo") or "").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(names)), None)


def _devices(place: Place) -> Json:
    folder = place.path("/dev")
    found = [*_DEVICES, *(name for name in _FURTHER_DEVICES if place.exists(name))]
    found += [f"/dev/{entry.relative_to(folder)}" for pattern in _DEVICE_PATTERNS for entry in sorted(folder.glob(pattern))]
    return {name: {"exists": place.exists(name), "readable": os.access(place.path(name), os.R_OK | os.W_OK)} for name in found}
