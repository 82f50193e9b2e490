"""Readings in words and in figures. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.base.files import Json
from holdfast.machine.readings.card import NUMBERS
from holdfast.machine.readings.signs import READINGS, signs

_GIB = 2**30


def told(reading: Json) -> list[str]:
    """Describe the machine in a line, and each card in one; what is unknown is left out."""
    facts = [_share(reading.get("processors_busy"), "processors {} busy"), _memory(reading, "memory")]
    swap, free = reading.get("swap_used_bytes"), reading.get("disk_free_bytes")
    facts += [f"swap {swap / _GIB:.1f} GiB" if swap else "", f"{free / _GIB:.1f} GiB of disk free" if free is not None else ""]
    lines = [", ".join(fact for fact in facts if fact)]
    for number, card in enumerate(reading.get("gpus") or []):
        watts, celsius = card.get("watts"), card.get("celsius")
        known = [_share(card.get("busy"), "{} busy"), _memory(card, "memory")]
        known += [f"{celsius:.0f} °C" if celsius is not None else "", _share(card.get("fan"), "fan {}")]
        known += [f"{watts:.0f}" + (f" of {card['watts_cap']:.0f} W" if card.get("watts_cap") else " W") if watts is not None else ""]
        known += [f"slowed down by {' and '.join(card['slowed'])}" if card.get("slowed") else ""]
        lines.append(f"GPU {number} ({card.get('name')}): {', '.join(one for one in known if one) or 'nothing is told of it'}")
    return [line for line in lines if line]


def figures(reading: Json) -> dict[str, float]:
    """Return the numbers that can be drawn or tracked, by name: processors_busy, gpu0/celsius, ..."""
    found = {name: reading.get(name) for name in ("processors_busy", "memory_used_bytes", "swap_used_bytes", "disk_free_bytes")}
    for number, card in enumerate(reading.get("gpus") or []):
        found |= {f"gpu{number}/{name}": card.get(name) for name in NUMBERS if not name.startswith("pcie")}
    return {name: float(value) for name, value in found.items() if isinstance(value, int | float)}


def seen_signs(readings: Sequence[Json]) -> list[str]:
    """Describe the signs of a whole run, and in how much of it each was seen."""
    windows = [readings[at : at + READINGS] for at in range(0, len(readings), READINGS)]
    seen: dict[tuple[str, int], list[str]] = {}
    for window in windows:
        for sign in signs(window):
            seen.setdefault((sign["sign"], sign["gpu"]), []).append(sign["says"])
    return [f"{says[-1]} (in {len(says) / len(windows):.0%} of the run)" for says in seen.values()]


def summed(readings: Sequence[Json]) -> Iterator[tuple[str, str]]:
    """Yield (what, mean and most) of a whole run."""
    tables = [figures(one) for one in readings]
    for name in dict.fromkeys(key for table in tables for key in table):
        values = [table[name] for table in tables if name in table]
        what = name.rpartition("/")[2]
        if what in ("memory_bytes", "watts_cap", "mhz", "disk_free_bytes"):
            continue
        card = f"GPU {name[3:].partition('/')[0]}: " if "/" in name else ""
        yield card + _LABELS.get(what, what), f"{_figure(what, sum(values) / len(values))}, at most {_figure(what, max(values))}"


_LABELS = {"processors_busy": "processors busy", "memory_used_bytes": "memory in use", "swap_used_bytes": "swap in use"}
_LABELS |= {"celsius": "temperature", "watts": "power"}
_UNITS = {"celsius": " °C", "watts": " W"}


def _figure(what: str, value: float) -> str:
    if what.endswith("bytes"):
        return f"{value / _GIB:.1f} GiB"
    return f"{value:.0%}" if what.endswith("busy") or what == "fan" else f"{value:.0f}{_UNITS.get(what, '')}"


def _share(value: float | None, words: str) -> str:
    return "" if value is None else words.format(f"{value:.0%}")


def _memory(found: Json, word: str) -> str:
    used, whole = found.get("memory_used_bytes"), found.get("memory_bytes")
    return "" if used is None or not whole else f"{word} {used / _GIB:.1f} of {whole / _GIB:.1f} GiB"
