"""The facts of a machine file without values of a wrong kind, for those who compute with them as they stand."""

from __future__ import annotations

from typing import Any

from holdfast.base.files import Json

_LARGEST = 1 << 50  # bytes of a memory or disk, and more than the count of anything else
_SMALLEST = 1 << 20  # bytes of a memory that anything is planned for
_MEMORIES = ("memory_bytes", "swap_bytes", "shm_bytes", "disk_free_bytes")
_SECTIONS = ("os", "cpu", "rocm", "cuda", "env", "tools", "packages", "devices", "probes")
_TEXTS = ("name", "arch", "vendor", "driver", "version", "hip", "cuda", "python", "torch_error")
_LISTS = ("arch_list", "blas_archs")
_TRUTHS = ("integrated", "bf16")


def sound_facts(facts: Json) -> Json:
    """Leave out the facts of a wrong kind: they are unknown then, as `machine_file.read` takes them."""
    found = _entry({name: value for name, value in facts.items() if name not in (*_SECTIONS, "torch", "gpus")})
    found |= {name: _entry(facts[name]) for name in _SECTIONS if isinstance(facts.get(name), dict)}
    if isinstance(facts.get("gpus"), list):
        found["gpus"] = _cards(facts["gpus"])
    torch = facts.get("torch", 0)
    if torch is None or isinstance(torch, dict):
        found["torch"] = torch and _entry(torch)
    if torch and "torch" in found and isinstance(torch.get("devices"), list):
        found["torch"]["devices"] = _cards(torch["devices"])
    return found


def _cards(entries: list[Any]) -> list[Json]:
    return [_entry(entry) for entry in entries if isinstance(entry, dict)]


def _entry(values: Json) -> Json:
    return {name: value for name, value in values.items() if _is_sound(name, value)}


def _is_sound(name: str, value: Any) -> bool:
    if value is None:
        return True
    if name in _MEMORIES or name == "threads":
        least = _SMALLEST if name == "memory_bytes" else 0
        return type(value) is int and least <= value < _LARGEST
    if name in _TEXTS:
        return isinstance(value, str)
    if name in _LISTS:
        return isinstance(value, list) and all(isinstance(entry, str) for entry in value)
    if name in _TRUTHS:
        return isinstance(value, bool)
    return name != "devices"  # those of torch: taken apart from the rest
