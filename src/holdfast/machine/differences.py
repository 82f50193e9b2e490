"""How two machines differ in what a run's speed, memory or bits follow from. Pure."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.base.files import Json
from holdfast.machine.machine_file import training_devices

_INSTRUCTIONS = "ATEN_CPU_CAPABILITY"  # by which torch is told to take other kernels than the CPU's best
_PACKAGES = ("transformers", "peft", "bitsandbytes", "safetensors", "accelerate", "flash-attn", "liger-kernel")


def unlike(before: Json, now: Json) -> list[str]:
    """List differences in words, "what: before -> now", those that change bits first; a fact unknown to one of them is no difference."""
    facts: list[tuple[str, Callable[[Json], object]]] = [
        ("GPUs", _gpus),
        ("torch", lambda one: _text(one, "torch", "version")),
        *((name, lambda one, name=name: _text(one, "packages", name)) for name in _PACKAGES),
        ("CPU", lambda one: _text(one, "cpu", "name")),
        (_INSTRUCTIONS, _instructions),
        ("holdfast", lambda one: _text(one, "holdfast")),
        ("Python", lambda one: _text(one, "python")),
        ("memory", lambda one: _gib(one.get("memory_bytes"))),
    ]
    pairs = [(name, fact(before), fact(now)) for name, fact in facts]
    found = [f"{name}: {one} -> {other}" for name, one, other in pairs if one is not None and other is not None and one != other]
    if any(line.startswith(("GPUs", "torch", "CPU", _INSTRUCTIONS)) for line in found):
        found.append("results from here on are equal to those of the other machine up to rounding, not to the bit")
    return found


def libraries(machine: Json) -> dict[str, str]:
    """Return the version by name of what a run's bits depend on, holdfast among it, and the CPU with its choice of kernels, where known."""
    versions = {"torch": _text(machine, "torch", "version")} | {name: _text(machine, "packages", name) for name in _PACKAGES}
    versions |= {"CPU": _text(machine, "cpu", "name"), _INSTRUCTIONS: _instructions(machine), "holdfast": _text(machine, "holdfast")}
    return {name: version for name, version in versions.items() if version is not None}


def _text(machine: Json, *keys: str) -> str | None:
    """Return the text at a place of a machine file, of which any part may be something else; None where there is none."""
    value: object = machine
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, str) else None


def _instructions(machine: Json) -> str | None:
    """Return what torch is told of the CPU's instructions; None in a machine file from before holdfast's version stood in it."""
    return (_text(machine, "env", _INSTRUCTIONS) or "not set") if _text(machine, "holdfast") else None


def _gpus(machine: Json) -> str | None:
    if machine.get("gpus") is None:
        return None
    names = [str(gpu.get("name") or gpu.get("arch") or "unknown") for gpu in training_devices(machine)]
    return ", ".join(names) or "none"


def _gib(size: object) -> str | None:
    return f"{size / 2**30:.0f} GiB" if type(size) is int and 0 < size < 2**63 else None
