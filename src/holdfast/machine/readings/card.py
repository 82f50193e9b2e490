"""One reading of a card: the same fields whoever made it. None is unknown."""

from __future__ import annotations

from holdfast.base.files import Json

NUMBERS = ("busy", "memory_used_bytes", "memory_bytes", "celsius", "watts", "watts_cap", "mhz", "fan", "pcie_lanes", "pcie_gts")
_FIELDS = (*NUMBERS, "watts_usual", "celsius_limit", "slowed", "holders")


def card_of(name: str, **known: object) -> Json:
    """Return a reading of a card. busy, fan: shares; watts_usual: the limit the card comes with; slowed: by what; holders: {pid: bytes}."""
    found: Json = {"name": name} | dict.fromkeys(_FIELDS) | known
    return found | {"throttled": None if found["slowed"] is None else bool({"heat", "brake"} & set(found["slowed"]))}


def over(value: int | None, by: int) -> float | None:
    return None if value is None else round(value / by, 3)
