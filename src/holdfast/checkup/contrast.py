"""What differs between two machines: facts, and what the doctor says of them. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from holdfast.base.files import Json
from holdfast.run.types import Finding


def contrast(first: Json, second: Json) -> list[Json]:
    """Return [{key, a, b}] of the facts that are not the same, by path; a fact that one of them lacks is null there."""
    left, right = dict(_leaves(first)), dict(_leaves(second))
    keys = sorted(left.keys() | right.keys())
    return [{"key": key, "a": left.get(key), "b": right.get(key)} for key in keys if left.get(key) != right.get(key)]


def rates(first: Json, second: Json) -> list[Json]:
    """Return [{what, a, b, b_over_a}] of the rates that the probes measured on both: matrix products, copies in memory, writing."""
    left, right = ({key: value for key, value in _leaves(facts.get("probes") or {}) if _is_rate(key, value)} for facts in (first, second))
    return [{"what": key, "a": left[key], "b": right[key], "b_over_a": round(right[key] / left[key], 3)} for key in left if key in right]


def _is_rate(key: str, value: Any) -> bool:
    return "per_second" in key and isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf


def _leaves(value: Any, path: str = "") -> Iterable[tuple[str, Any]]:
    entries = value.items() if isinstance(value, dict) else enumerate(value) if _nested(value) else None
    if entries is None:
        yield path, value
        return
    for name, entry in entries:
        yield from _leaves(entry, f"{path}.{name}" if path else str(name))


def _nested(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(entry, (dict, list)) for entry in value)


def only_in(these: list[Finding], others: list[Finding]) -> list[Finding]:
    """Return the findings that the other machine does not have."""
    known = {(finding.id, finding.message) for finding in others}
    return [finding for finding in these if (finding.id, finding.message) not in known]
