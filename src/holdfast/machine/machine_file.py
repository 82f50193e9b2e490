"""Make a Machine from the JSON of a machine file. What is missing or of a wrong kind is unknown, and remembered; nothing fails."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal, TypeVar

from holdfast.base.files import Json
from holdfast.machine.facts import INTEGRATED, VENDORS, Gpu, Machine, Node, Probe, Torch

T = TypeVar("T")


def training_devices(facts: Json) -> list[Json]:
    """Return the GPUs a run will use: those torch sees, else those its build is for; discrete ones, where there are any. Empty: the CPU.

    An integrated GPU beside a card is hidden from the trainer (book/variables/rocr_visible_devices.py).
    """
    torch = facts.get("torch", {})
    seen = torch.get("devices") if isinstance(torch, Mapping) else None
    if isinstance(seen, list):
        return _discrete(seen)
    if torch is None:
        return []
    gpus, found = facts.get("gpus"), read(facts).torch
    listed = [gpu for gpu in gpus if isinstance(gpu, dict)] if isinstance(gpus, list) else []
    if found is not None and found.backend is not None:
        listed = [gpu for gpu in listed if gpu.get("vendor") == found.vendor]
    return _discrete(listed)


def _discrete(entries: list[Any]) -> list[Json]:
    gpus = [gpu for gpu in entries if isinstance(gpu, dict)]
    return [gpu for gpu in gpus if not (gpu.get("integrated") or str(gpu.get("arch")) in INTEGRATED)] or gpus


def read(facts: Mapping[str, Any]) -> Machine:
    """Read a machine from the JSON of a machine file; never fails, whatever stands there."""
    at = _Reader(facts)
    torch = _torch(at) if at.section("torch") else None
    machine = Machine(
        kernel=at.text("os", "kernel"),
        distro=at.text("os", "distro"),
        system=at.text("os", "system"),
        wsl=at.truth("os", "wsl"),
        container=at.truth("os", "container"),
        init=at.text("os", "init"),
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
        cpu=at.text("cpu", "name"),
        threads=at.size("cpu", "threads"),
        bf16=at.truth("cpu", "bf16"),
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
        at.text("torch", "mkl"),
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
        return self._of(path, str)

    def truth(self, *path: str) -> bool | None:
        return self._of(path, bool)

    def number(self, *path: str) -> float | None:
        return self._of(path, float, int)

    def size(self, *path: str) -> int | None:
        value = self._of(path, int)
        if value is None or value >= 0:
            return value
        self._strange(path)
        return None

    def _of(self, path: tuple[str, ...], *kinds: type[T]) -> T | None:
        """Return the value where it is of one of the kinds (true and false are no numbers); None where there is no such value."""
        value = self._value(path)
        if value is None or (isinstance(value, kinds) and isinstance(value, bool) == (bool in kinds)):
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
        """Return versions by name; null means not installed, a value that is no text means unknown."""
        section = self.section(*path)
        strange = [name for name, value in section.items() if not isinstance(value, str | None)]
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
