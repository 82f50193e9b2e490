"""What is known of wheels, architectures and drivers: tables/, each line with its source, and the questions checks ask of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

from holdfast.base.files import Json
from holdfast.base.versions import release, version, within
from holdfast.config.yaml_tree import LOADER
from holdfast.machine.facts import Gpu, Machine, Torch
from holdfast.machine.machine_file import read, training_devices

_TABLES = Path(__file__).parent / "tables"
WHEELS = "https://download.pytorch.org/whl"
_OVERRIDE = "HSA_OVERRIDE_GFX_VERSION"
AMD_DEVICES = "--device=/dev/kfd --device=/dev/dri --group-add video --group-add render"  # what a container with an AMD card needs


@cache
def table(name: str) -> Json:
    content: Json = yaml.load((_TABLES / f"{name}.yaml").read_bytes(), LOADER)
    return content


def rocm_wheel(torch: str, rocm: str | None) -> Json | None:
    """Return the official wheel of a torch release for a ROCm version; None when there is none."""
    return next((wheel for wheel in rocm_wheels() if release(wheel["torch"]) == release(torch) and _same_rocm(wheel["rocm"], rocm)), None)


def rocm_wheels(torch: str | None = None) -> list[Json]:
    wheels: list[Json] = table("rocm_wheels")["wheels"]
    return [wheel for wheel in wheels if torch is None or release(wheel["torch"]) == release(torch)]


def _same_rocm(ours: str, theirs: str | None) -> bool:
    """Return whether both are one ROCm: 6.2.4 is 6.2.4, 6.2 is 6.2 and 6.2.0, but 6.2.41133 (a HIP version) is any 6.2."""
    left, right = version(ours), version(theirs or "")
    if len(right) > 2 and right[2] > 1000:
        right = right[:2]
    return left == right or (left[:2] == right[:2] and (len(right) == 2 or (len(left) == 2 and right[2:] == (0,))))


def known_archs(torch: Torch) -> tuple[tuple[str, ...] | None, str]:
    """Return (architectures the installed torch has code for, the source; empty where torch itself told them); None when nobody knows."""
    if torch.arch_list:
        return torch.arch_list, ""
    wheel = rocm_wheel(torch.version, torch.rocm) if torch.backend == "rocm" else None
    if torch.backend == "cuda":
        wheel = _cuda_wheel(torch.version, toolkit(torch) or "")
    return (tuple(wheel["archs"]), wheel["source"]) if wheel else (None, "")


def lacks_code(torch: Torch, arch: str) -> bool:
    """Return whether torch is known to have no code for an architecture."""
    archs, _ = known_archs(torch)
    return bool(archs) and not has_code(arch, archs or ())


def fused_attention(torch: Torch, arch: str) -> Literal["stable", "experimental"] | None:
    """Return whether this torch has fused attention for an AMD architecture, has it behind a switch, or has none."""
    row = row_of("architectures", "fused_attention", torch=torch.version) or {"stable": [], "experimental": []}
    return "stable" if arch in row["stable"] else "experimental" if arch in row["experimental"] else None


def attention_kernels(machine: Machine, gpu: str | None) -> Literal["stable", "experimental"] | None:
    """Return fused_attention for the GPU of that architecture under this environment's switch; stable for what is no AMD card."""
    torch, arch = machine.torch, next((running_as(one, machine.env) for one in machine.gpus if one.arch == gpu), "")
    if torch is None or torch.backend != "rocm":
        return "stable"
    found = fused_attention(torch, arch)
    switched = machine.env.get("TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL") == "1"
    return "stable" if found == "experimental" and switched else found


def has_fused_attention(facts: Json) -> bool:
    """Return whether attention on the GPU a run takes holds no matrix of scores."""
    gpus = training_devices(facts)
    return not gpus or attention_kernels(read(facts), gpus[0].get("arch")) == "stable"


def lacks_device_package(machine: Machine, arch: str) -> bool:
    """Return whether ROCm is pip packages here, one of kernels for each architecture, and this architecture's is missing."""
    packages = machine.packages
    return bool(packages.get("rocm-sdk-libraries")) and bool(arch) and not packages.get(f"rocm-sdk-device-{arch}")


def toolkit(torch: Torch) -> str | None:
    """Return the ROCm or CUDA a torch was built with, as 7.2 or 12.8: from its version (2.9.0+cu128), else from what it reports."""
    local = torch.version.partition("+cu")[2]
    named = f"{local[:-1]}.{local[-1]}" if local.isdecimal() and len(local) >= 3 else None
    numbers = release((torch.rocm if torch.backend == "rocm" else torch.cuda or named) or "")
    return ".".join(map(str, numbers)) or None


def cuda_archs(torch: str, cuda: str) -> tuple[str, ...] | None:
    """Return the architectures that the official wheel of a torch release for a CUDA version has code for; None where none is recorded."""
    wheel = _cuda_wheel(torch, cuda)
    return tuple(wheel["archs"]) if wheel else None


def _cuda_wheel(torch: str, cuda: str) -> Json | None:
    for row in table("cuda_wheels")["archs"]:
        if within(torch, row["torch"]) and ".".join(map(str, release(cuda))) in row["cuda"]:
            later = [f"compute_{row['ptx']}"] if "ptx" in row else []
            return {"archs": [f"sm_{number}" for number in row["sm"]] + later, "source": row["source"]}
    return None


def cuda_served(cuda: str, driver: str) -> bool:
    """Return whether an NVIDIA driver is known to be new enough for a CUDA version."""
    floor = row_of("drivers", "nvidia", cuda=cuda)
    return floor is not None and version(floor["driver"]) <= version(driver)


def has_code(arch: str, archs: tuple[str, ...]) -> bool:
    """Return whether code for one of `archs` runs on a GPU of `arch`, without any override."""
    if arch.startswith("gfx"):
        return arch in {entry.partition(":")[0] for entry in archs} or _generic(arch) in archs
    card = _capability(arch)
    if card is None:
        return True
    for entry in archs:
        code = _capability(entry)
        if code and (code <= card if entry.startswith("compute_") else code[0] == card[0] and code[1] <= card[1]):
            return True
    return False


def _generic(arch: str) -> str:
    return {"gfx103": "gfx10-3-generic", "gfx110": "gfx11-generic", "gfx115": "gfx11-generic", "gfx120": "gfx12-generic"}.get(arch[:6], "")


def _capability(arch: str) -> tuple[int, int] | None:
    digits = re.fullmatch(r"(?:sm|compute)_(\d+)(\d)[af]?", arch)
    return (int(digits[1]), int(digits[2])) if digits else None


def capability(arch: str | None) -> tuple[int, int]:
    """Parse sm_86 to (8, 6); (0, 0) for anything else."""
    return _capability(arch or "") or (0, 0)


def sibling(arch: str) -> Json | None:
    """Return the architecture whose code also runs on this one, and the override that lets it."""
    return next((row for row in table("architectures")["siblings"] if arch in row["arch"]), None)


def runs_as_sibling(arch: str, archs: Sequence[str]) -> bool:
    """Return whether a confirmed override lets it run code for one of `archs` (variables/hsa_override_gfx_version.py)."""
    other = sibling(arch)
    return other is not None and other["standing"] == "confirmed" and other["runs_as"] in archs


def target_of(override: str) -> str | None:
    """Return the architecture that HSA_OVERRIDE_GFX_VERSION=11.0.0 claims (gfx1100): three decimal numbers; None for anything else."""
    parts = re.fullmatch(r"(\d{1,2})\.(\d{1,2})\.(\d{1,2})", override.strip())
    return f"gfx{int(parts[1])}{int(parts[2]):x}{int(parts[3]):x}" if parts else None


def claimed_for(gpu: Gpu, env: Mapping[str, str]) -> str:
    """Return the architecture that an override claims for a GPU, or for a node of its kind; its own where none does."""
    for name, value in env.items():
        target = target_of(value) if gpu.vendor == "amd" and name.startswith(_OVERRIDE) else None
        if target and (name == _OVERRIDE or (sibling(gpu.arch or "") or {}).get("runs_as") == target):
            return target
    return gpu.arch or ""


def running_as(gpu: Gpu, env: Mapping[str, str]) -> str:
    """Return the architecture whose code a GPU runs: its own, or the one claimed for it.

    A claim of another instruction set is to be unset (the check gfx-override blocks), so it is left out: what follows from it is no news.
    """
    claimed = claimed_for(gpu, env)
    return claimed if gpu.arch and family(claimed) == family(gpu.arch) else gpu.arch or claimed


def family(arch: str) -> str:
    """Return the group of instruction sets close enough to be mistaken for each other: gfx103x, gfx11xx, gfx120x, gfx90x, gfx94x."""
    return "gfx11" if arch.startswith("gfx11") else arch[:-1]


_OURS = "in holdfast's checkout, pip install . transformers peft"


def torch_for(cards: Sequence[Gpu]) -> str:
    """Say what to install on a machine with these GPUs, none of which has a usable torch."""
    gpu = next((gpu for gpu in cards if gpu.arch), None)
    if gpu is None:
        return f"pip install torch --index-url {WHEELS}/cpu (no GPU), or the wheel for your GPU; then, {_OURS}"
    keep = f"; then, {_OURS}, which leaves it alone" if gpu.vendor == "amd" else ""
    return f"for {gpu.words()} install {wheel_advice(gpu.arch or '')}{keep}"


def wheel_advice(arch: str) -> str:
    """Say which official torch has code for this GPU."""
    if arch.startswith("gfx"):
        return _rocm_advice(arch)
    major, minor = capability(arch)
    if (major, minor) < (5, 0):
        return "no official torch of 2.4 or newer has code for it; train on the CPU"
    last = [row["torch"] for row in table("cuda_wheels")["wheels"] if "12.6" in row["cuda"]][-1]
    if major < 7:
        return f"torch 2.6 to {last} of {WHEELS}/cu126, the only CUDA wheels that still have it"
    if (major, minor) < (7, 5):
        return f"torch 2.6 to {last} of {WHEELS}/cu126 (cu128 has it in 2.8 to 2.10 only)"
    if major >= 10:
        return f"torch 2.7 to 2.11 of {WHEELS}/cu128, or with a driver of 580 or newer torch 2.9 or newer of {WHEELS}/cu130"
    return f"a torch of {WHEELS}/cu126 or newer that your driver supports"


def _rocm_advice(arch: str) -> str:
    if arch in ("gfx900", "gfx906"):
        tried = "; untested: AMD's nightly builds with rocm-sdk-device-gfx906 (github.com/ROCm/TheRock, SUPPORTED_GPUS.md)"
        return f"torch 2.7 to 2.9 of {WHEELS}/rocm6.3, the last wheels with kernels for it{tried if arch == 'gfx906' else ''}"
    if arch in ("gfx1150", "gfx1151"):
        return f"torch 2.10 or newer of {WHEELS}/rocm7.1, or AMD's own index for {arch} under repo.amd.com/rocm/whl"
    wheels = [wheel for wheel in rocm_wheels() if arch in wheel["archs"] and wheel["sure"] != "low" and within(wheel["torch"], ">=2.4")]
    if wheels:
        first, newest = wheels[0], wheels[-1]
        oldest = next(wheel["torch"] for wheel in wheels if wheel["rocm"] == newest["rocm"])
        advised = f"torch {oldest} to {newest['torch']} of {WHEELS}/rocm{newest['rocm']}"
        return f"{advised} (or older, from {first['torch']} of {WHEELS}/rocm{first['rocm']} on)" if first != newest else advised
    other = sibling(arch)
    if other:
        return f"a torch with {other['runs_as']} and HSA_OVERRIDE_GFX_VERSION={other['override']}"
    return "no official wheel has code for it: AMD's TheRock builds may (github.com/ROCm/TheRock, SUPPORTED_GPUS.md); else train on the CPU"


def newest_python(torch: Torch) -> Json | None:
    """Return {newest, source} of the Python versions the official wheels of this torch are made for."""
    for row in table("pythons")["pythons"]:
        if within(torch.version, row["torch"]):
            return {"newest": row["rocm"] if torch.backend == "rocm" and "rocm" in row else row["newest"], "source": row["source"]}
    return None


def row_of(name: str, section: str, **wanted: Any) -> Json | None:
    """Return the first row of a table whose version ranges hold: row_of("drivers", "amd", driver="6.8.5")."""
    return next((row for row in table(name)[section] if all(within(value, row[key]) for key, value in wanted.items())), None)


def bitsandbytes_library(torch: Torch, installed: str) -> Json | None:
    """Return {library, archs, made, source} of what a bitsandbytes loads under this torch; `library` None: it has none that fits.

    None where nobody read that version's wheel, or torch is for the CPU.
    """
    built = toolkit(torch)
    rows = table("bitsandbytes")[torch.backend] if torch.backend in ("rocm", "cuda") and built else []
    row = next((row for row in rows if within(installed, row["version"])), None)
    return _loaded(row, built) if row and built else None


def bitsandbytes_serving(torch: Torch, arch: str) -> str | None:
    """Return the versions of bitsandbytes (">=0.50.2") with code for an architecture under this torch, the newest of those read."""
    built = toolkit(torch)
    for row in reversed(table("bitsandbytes")[torch.backend]) if torch.backend in ("rocm", "cuda") and built else ():
        loaded = _loaded(row, built or "")
        if loaded["library"] and has_code(arch, tuple(loaded["archs"])):
            return str(row["version"]).replace(" ", ",")
    return None


def _loaded(row: Json, built: str) -> Json:
    """Return the library of one row that is loaded under a ROCm or CUDA version."""
    archs = {made: entry["archs"] for entry in row["libraries"] for made in entry["of"]}
    wanted, choice = version(built), built if built in archs else None
    if choice is None and row.get("nearest"):
        same = sorted((made for made in archs if version(made)[0] == wanted[0]), key=version)
        lower = [made for made in same if version(made) < wanted]
        choice = lower[-1] if lower else next(iter(same), None)
    return {"library": choice, "archs": archs.get(choice or "", []), "made": sorted(archs, key=version), "source": row["source"]}
