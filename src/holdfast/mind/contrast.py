"""What differs between two machines: facts, and what the doctor says of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from holdfast.core.files import Json
from holdfast.core.types import Finding


def contrast(first: Json, second: Json) -> list[Json]:
    """[{key, a, b}] of the facts that are not the same, by path; a fact that one of them lacks is null there."""
    left, right = dict(_leaves(first)), dict(_leaves(second))
    keys = sorted(left.keys() | right.keys())
    return [{"key": key, "a": left.get(key), "b": right.get(key)} for key in keys if left.get(key) != right.get(key)]


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
    """Findings that the other machine does not have."""
    known = {(finding.id, finding.message) for finding in others}
    return [finding for finding in these if (finding.id, finding.message) not in known]
