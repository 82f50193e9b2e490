"""The facts of a machine as a noun, made from a machine file. What is missing or of a wrong kind is unknown; judges nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from holdfast.core.files import Json

Vendor = Literal["amd", "nvidia", "intel", "apple"]
# Architectures that exist as part of a processor only (LLVM's AMDGPU processor table).
INTEGRATED = frozenset(
    (
        *("gfx902", "gfx909", "gfx90c", "gfx1013", "gfx1033", "gfx1035", "gfx1036", "gfx1037"),
        *("gfx1103", "gfx1150", "gfx1151", "gfx1152", "gfx1153"),
    )
)
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


@dataclass(frozen=True)
class Torch:
    """The installed torch. `devices`: what it sees (None: not asked); `blas_archs`: AMD architectures its rocBLAS has files for."""

    version: str
    hip: str | None = None
    cuda: str | None = None
    backend: Literal["rocm", "cuda", "cpu"] | None = None
    arch_list: tuple[str, ...] | None = None
    devices: tuple[Gpu, ...] | None = None
    blas_archs: tuple[str, ...] | None = None

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
    threads: int | None = None
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


def training_devices(facts: Json) -> list[Json]:
    """The GPUs that the installed torch can be expected to train on: those it sees, else those its build is for. Empty: the CPU."""
    torch = facts.get("torch", {})
    seen = torch.get("devices") if isinstance(torch, Mapping) else None
    if isinstance(seen, list):
        return [gpu for gpu in seen if isinstance(gpu, dict)]
    if torch is None:
        return []
    gpus, found = facts.get("gpus"), read(facts).torch
    listed = [gpu for gpu in gpus if isinstance(gpu, dict)] if isinstance(gpus, list) else []
    return listed if found is None or found.backend is None else [gpu for gpu in listed if gpu.get("vendor") == found.vendor]


def read(facts: Mapping[str, Any]) -> Machine:
    """A machine from the JSON of a machine file; never fails, whatever stands there."""
    at = _Reader(facts)
    torch = _torch(at) if at.section("torch") else None
    machine = Machine(
        kernel=at.text("os", "kernel"),
        distro=at.text("os", "distro"),
        system=at.text("os", "system"),
        wsl=at.truth("os", "wsl"),
        container=at.truth("os", "container"),
        kernel_command_line=at.text("os", "command_line"),
        numa_balancing=at.truth("os", "numa_balancing"),
        groups=at.texts("os", "groups"),
        wsl_libraries=at.texts("os", "wsl_libraries"),
        blacklisted=at.texts("os", "blacklisted"),
        python=at.text("python"),
        memory_bytes=at.size("memory_bytes"),
        swap_bytes=at.size("swap_bytes"),
        shm_bytes=at.size("shm_bytes"),
        disk_free_bytes=at.size("disk_free_bytes"),
        threads=at.size("cpu", "threads"),
        torch=torch,
        torch_known=torch is not None or facts.get("torch", 0) is None,
        torch_error=at.text("torch_error"),
        rocm=at.text("rocm", "version"),
        amd_driver=at.text("rocm", "driver"),
        firmware=at.table("rocm", "firmware"),
        repositories=at.texts("rocm", "repositories"),
        cuda_driver=at.text("cuda", "driver"),
        gpus=at.gpus("gpus"),
        gpus_known=isinstance(facts.get("gpus"), list),
        devices=at.nodes("devices"),
        packages=at.packages("packages"),
        env=at.table("env"),
        tools=at.table("tools"),
        probes=at.probes("probes"),
    )
    return replace(machine, odd=tuple(dict.fromkeys(at.odd)))


def _torch(at: _Reader) -> Torch | None:
    version = at.text("torch", "version")
    if version is None:
        return None
    hip, cuda = at.text("torch", "hip"), at.text("torch", "cuda")
    devices = at.gpus("torch", "devices") if isinstance(at.section("torch").get("devices"), list) else None
    return Torch(
        version,
        hip,
        cuda,
        _backend(version, hip, cuda, {"hip", "cuda"} <= at.section("torch").keys()),
        at.texts("torch", "arch_list"),
        devices,
        at.texts("torch", "blas_archs"),
    )


def _backend(version: str, hip: str | None, cuda: str | None, both_told: bool) -> Literal["rocm", "cuda", "cpu"] | None:
    local = version.partition("+")[2]
    if hip or local.startswith("rocm"):
        return "rocm"
    if cuda or local.startswith("cu"):
        return "cuda"
    return "cpu" if local.startswith("cpu") or both_told else None


class _Reader:
    """Reads values by path and remembers the paths whose values were of a wrong kind."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self.facts = facts
        self.odd: list[str] = []

    def text(self, *path: str) -> str | None:
        value = self._value(path)
        if value is None or isinstance(value, str):
            return value
        self._strange(path)
        return None

    def truth(self, *path: str) -> bool | None:
        value = self._value(path)
        if value is None or isinstance(value, bool):
            return value
        self._strange(path)
        return None

    def size(self, *path: str) -> int | None:
        value = self._value(path)
        if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
            return value
        self._strange(path)
        return None

    def number(self, *path: str) -> float | None:
        value = self._value(path)
        if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
            return value
        self._strange(path)
        return None

    def texts(self, *path: str) -> tuple[str, ...] | None:
        value = self._value(path)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
            self._strange(path)
        return tuple(entry for entry in value if isinstance(entry, str)) if isinstance(value, list) else None

    def section(self, *path: str) -> Mapping[str, Any]:
        value = self._value(path)
        if isinstance(value, Mapping):
            return value
        if value is not None:
            self._strange(path)
        return {}

    def table(self, *path: str) -> dict[str, str]:
        found = {}
        for name, value in self.section(*path).items():
            if isinstance(name, str) and isinstance(value, (str, int)) and not isinstance(value, bool):
                found[name] = str(value)
            elif value is not None:
                self._strange((*path, str(name)))
        return found

    def packages(self, *path: str) -> dict[str, str | None]:
        """Versions by name; null means not installed, a value that is no text means unknown."""
        section, strange = (
            self.section(*path),
            [name for name, value in self.section(*path).items() if not isinstance(value, (str, type(None)))],
        )
        for name in strange:
            self._strange((*path, str(name)))
        return {str(name): value for name, value in section.items() if name not in strange}

    def nodes(self, *path: str) -> dict[str, Node]:
        found = {}
        for name in self.section(*path):
            entry = _Reader(self.section(*path, name))
            found[str(name)] = Node(entry.truth("exists"), entry.truth("readable"))
            self._take(entry, (*path, str(name)))
        return found

    def probes(self, *path: str) -> dict[str, Probe]:
        found = {}
        for name in self.section(*path):
            entry = _Reader(self.section(*path, name))
            rates = {place: int(rate) for place, rate in entry.table("bytes_per_second").items() if rate.isdecimal()}
            found[str(name)] = Probe(entry.text("outcome"), entry.text("detail"), entry.number("bf16_speed"), rates)
            self._take(entry, (*path, str(name)))
        return found

    def gpus(self, *path: str) -> tuple[Gpu, ...]:
        value = self._value(path)
        if value is not None and not isinstance(value, list):
            self._strange(path)
        entries: Iterable[Any] = value if isinstance(value, list) else ()
        return tuple(gpu for index, entry in enumerate(entries) if (gpu := self._gpu(entry, (*path, str(index)))))

    def _gpu(self, entry: Any, path: tuple[str, ...]) -> Gpu | None:
        if not isinstance(entry, Mapping):
            self._strange(path)
            return None
        at = _Reader(entry)
        arch = (at.text("arch") or "").partition(":")[0].strip().lower() or None
        vendor = next((known for known in VENDORS if known == (at.text("vendor") or "").lower()), None)
        if vendor is None and arch:
            vendor = "amd" if arch.startswith("gfx") else "nvidia" if arch.startswith("sm_") else None
        integrated = at.truth("integrated")
        if integrated is None and arch in INTEGRATED:
            integrated = True
        gpu = Gpu(vendor, arch, at.text("name"), at.size("memory_bytes"), integrated, at.text("driver"))
        self._take(at, path)
        return gpu

    def _take(self, other: _Reader, path: tuple[str, ...]) -> None:
        self.odd += [f"{'.'.join(path)}.{name}" for name in other.odd]

    def _value(self, path: tuple[str, ...]) -> Any:
        value: Any = self.facts
        for depth, name in enumerate(path):
            if value is None:
                return None
            if not isinstance(value, Mapping):
                self._strange(path[:depth])
                return None
            value = value.get(name)
        return value

    def _strange(self, path: tuple[str, ...]) -> None:
        self.odd.append(".".join(path))
