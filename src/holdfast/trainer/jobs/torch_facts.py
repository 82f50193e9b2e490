"""Say what torch is here and which devices it sees, as JSON on standard output. Computes nothing on them."""

from __future__ import annotations

import re

import orjson
import torch

_MKL = re.compile(r"Math Kernel Library Version (\d[\d.]*)")


def probe() -> int:
    devices = []
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        vendor = "amd" if torch.version.hip else "nvidia"
        arch = getattr(facts, "gcnArchName", "").split(":")[0] if vendor == "amd" else f"sm_{facts.major}{facts.minor}"
        entry = {"vendor": vendor, "arch": arch, "name": facts.name, "memory_bytes": facts.total_memory}
        devices.append(entry | {"integrated": bool(getattr(facts, "is_integrated", False))})
    build = {"version": torch.__version__, "hip": torch.version.hip, "cuda": torch.version.cuda, "arch_list": _arch_list()}
    build["mkl"] = mkl_version()
    print(orjson.dumps(build | {"devices": devices}).decode())
    return 0


def mkl_version() -> str | None:
    """Return the version of the MKL in the build; None where it has none, or cannot say what it is made of."""
    try:
        found = _MKL.search(torch.__config__.show())
    except RuntimeError:  # a build with CUDA that cannot load the library which knows its version
        return None
    return found[1] if found else None


def _arch_list() -> list[str]:
    """Return the architectures of the build, also without a device, where get_arch_list() does not tell."""
    flags = getattr(torch._C, "_cuda_getArchFlags", None)
    return (flags() or "").split() if flags else []
