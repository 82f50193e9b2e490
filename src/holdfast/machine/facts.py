"""The facts of a machine as nouns. None is unknown. Making them from a machine file is machine_file.py's job; they judge nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Vendor = Literal["amd", "nvidia", "intel", "apple"]
# Architectures that exist as part of a processor only (LLVM's AMDGPU processor table).
INTEGRATED = frozenset(
    (
        *("gfx902", "gfx909", "gfx90c", "gfx1013", "gfx1033", "gfx1035", "gfx1036", "gfx1037"),
        *("gfx1103", "gfx1150", "gfx1151", "gfx1152", "gfx1153"),
    )
)
# Cards whose driver hangs the machine where their memory runs out, instead of refusing: https://github.com/unslothai/unsloth/pull/5301
FREEZE_WHEN_FULL = frozenset({"gfx1200", "gfx1201"})
BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})  # of /proc/cpuinfo: units that multiply bf16, the last one on ARM
_AMD_BF16 = ("gfx908", "gfx90a", "gfx94", "gfx95", "gfx11", "gfx12")
_FAST_FP16 = ("sm_70", "sm_72", "sm_75", "gfx906", "gfx103")
_TRITONS = ("triton", "pytorch-triton-rocm", "triton-rocm")
VENDORS: tuple[Vendor, ...] = ("amd", "nvidia", "intel", "apple")


@dataclass(frozen=True)
class Gpu:
    """A graphics card or integrated GPU. `arch` as gfx1100 or sm_90."""

    vendor: Vendor | None = None
    arch: str | None = None
    name: str | None = None
    memory_bytes: int | None = None
    integrated: bool | None = None
    driver: str | None = None

    def words(self) -> str:
        return " ".join(part for part in (self.name or self.vendor or "a GPU", f"({self.arch})" if self.arch else "") if part)


def has_bf16(arch: str | None) -> bool | None:
    """Return whether a GPU multiplies bf16 itself: NVIDIA's from sm_80 on, AMD's from MI100 and RDNA3 on. None: an unknown architecture."""
    arch = arch or ""
    number = arch.removeprefix("sm_").rstrip("af")
    if arch.startswith("sm_") and number.isdecimal():
        return int(number) >= 80
    return arch.startswith(_AMD_BF16) if arch.startswith("gfx") else None


def has_fast_fp16(arch: str | None) -> bool:
    """Return whether a GPU without bf16 multiplies fp16 several times faster than fp32: Volta, Turing, MI50 and RDNA2."""
    return (arch or "").startswith(_FAST_FP16)


@dataclass(frozen=True)
class Torch:
    """The installed torch. `devices`: what it sees (None: not asked); `blas_archs`: AMD architectures its rocBLAS has files for.

    mkl: the version of the MKL in it; None where it has none, or was not asked.
    """

    version: str
    hip: str | None = None
    cuda: str | None = None
    backend: Literal["rocm", "cuda", "cpu"] | None = None
    arch_list: tuple[str, ...] | None = None
    devices: tuple[Gpu, ...] | None = None
    blas_archs: tuple[str, ...] | None = None
    mkl: str | None = None

    @property
    def vendor(self) -> Vendor | None:
        return "amd" if self.backend == "rocm" else "nvidia" if self.backend == "cuda" else None

    @property
    def rocm(self) -> str | None:
        """The ROCm it was built with: of the name (2.5.1+rocm6.2), else of the HIP version."""
        if "+rocm" in self.version:
            return self.version.partition("+rocm")[2].split("a")[0].split(".git")[0]
        return self.hip


@dataclass(frozen=True)
class Node:
    """A device file."""

    exists: bool | None = None
    readable: bool | None = None


@dataclass(frozen=True)
class Probe:
    """What a small calculation on the device came to. `rates`: bytes a second by path; `bf16_speed`: times fp32's."""

    outcome: str | None = None
    detail: str | None = None
    bf16_speed: float | None = None
    rates: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Machine:
    """Facts of a machine; None and absent keys are unknown. `odd`: keys whose values were not understood."""

    kernel: str | None = None
    distro: str | None = None
    system: str | None = None
    wsl: bool | None = None
    container: bool | None = None
    init: str | None = None  # the name of the first process
    kernel_command_line: str | None = None
    numa_balancing: bool | None = None
    groups: tuple[str, ...] | None = None
    wsl_libraries: tuple[str, ...] | None = None
    blacklisted: tuple[str, ...] | None = None
    python: str | None = None
    memory_bytes: int | None = None
    swap_bytes: int | None = None
    shm_bytes: int | None = None
    disk_free_bytes: int | None = None
    cpu: str | None = None  # its name
    threads: int | None = None
    bf16: bool | None = None  # whether the CPU multiplies it
    torch: Torch | None = None
    torch_known: bool = False
    torch_error: str | None = None
    rocm: str | None = None
    amd_driver: str | None = None
    firmware: dict[str, str] = field(default_factory=dict)
    repositories: tuple[str, ...] | None = None
    cuda_driver: str | None = None
    gpus: tuple[Gpu, ...] = ()
    gpus_known: bool = False
    devices: dict[str, Node] = field(default_factory=dict)
    packages: dict[str, str | None] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    tools: dict[str, str] = field(default_factory=dict)
    probes: dict[str, Probe] = field(default_factory=dict)
    odd: tuple[str, ...] = ()

    def of(self, vendor: Vendor) -> tuple[Gpu, ...]:
        return tuple(gpu for gpu in self.gpus if gpu.vendor == vendor)

    def package(self, name: str) -> str | None:
        return self.packages.get(name)

    def tritons(self) -> dict[str, str]:
        """Return the installed Triton packages with their versions: all of them bring the same module."""
        return {name: version for name in _TRITONS if (version := self.package(name))}
