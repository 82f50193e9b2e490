"""Sizes and counts as people write them: 512MiB, 8 GB; 1 row, 1,350 rows; a, b and 3 more; 0.62 GiB; 3 min."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

_UNITS = {
    "": 1,
    "b": 1,
    **{f"{letter}{kind}": (1024 if kind == "ib" else 1000) ** power for power, letter in enumerate("kmgt", 1) for kind in ("b", "ib")},
}
LEAST_MEMORY = 64 << 20  # bytes; less than that is a number without its unit
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_bytes(value: Any) -> Any:
    """Parse a text like "8GiB" to bytes; anything but a text is returned as it is. Raises ValueError for a text that is no size."""
    if not isinstance(value, str):
        return value
    found = _SIZE.fullmatch(value)
    if not found or found[2].lower() not in _UNITS:
        meant = f"; did you mean {found[1]}{found[2].upper()}iB?" if found and found[2].lower() in ("k", "m", "g", "t") else ""
        raise ValueError(f"{value!r} is not a size{meant or '; write for example 8GiB, 500MB or a number of bytes'}")
    size = float(found[1]) * _UNITS[found[2].lower()]
    if not math.isfinite(size):
        raise ValueError(f"{value[:40]}... is no size that can be")
    return int(size)


def parse_memory(value: Any) -> Any:
    """Parse bytes as `parse_bytes` does. Raises ValueError for fewer than any model needs, with the size that was probably meant."""
    size = parse_bytes(value)
    if isinstance(size, int | float) and size < LEAST_MEMORY:
        meant = with_unit(value)
        raise ValueError(f"{size:,} bytes hold no model; " + (f"did you mean {meant}?" if meant else "write for example 8GiB"))
    return size


def with_unit(value: Any) -> str:
    """Return a number that is too small for bytes with the unit it was probably meant in: "8GiB", "8192MiB"; "" for what has a unit."""
    found = _SIZE.fullmatch(str(value))
    if not found or found[2] or not float(found[1]):
        return ""
    return f"{found[1]}{'GiB' if float(found[1]) < 1024 else 'MiB'}"


def counted(number: int, noun: str) -> str:
    """Format a count, 1 row or 1,350 rows: for nouns that take an s."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def listed(names: Sequence[str], most: int = 6) -> str:
    """Join names as in "a, b and 1,350 more": at most `most` of them."""
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def chance(p_value: float) -> str:
    """Format a p-value, p = 0.031; the far tail of a test is no number that anything is known of."""
    return f"p = {p_value:.2g}" if p_value >= 1e-9 else "p < 1e-9"


def in_millions(number: int) -> str:
    """Format a large count in words, 2.72 million, 7.6 billion."""
    return f"{number / 1e9:.3g} billion" if number >= 1e9 else f"{number / 1e6:.3g} million"


def gib(size: float) -> str:
    """Format bytes as GiB, small ones as MiB."""
    return f"{size / 2**30:,.2f} GiB" if size >= 2**28 else f"{size / 2**20:,.1f} MiB"


def span(seconds: float) -> str:
    """Format a stretch of time in short words."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def figure(value: Any) -> str:
    """Format a measured number, or the text of one, with at most 5 digits; in words where it is none, or was never computed."""
    if value is None or value == "None":
        return "not computed"
    try:
        number = float(value)
    except (TypeError, ValueError):
        return str(value)
    return f"{number:.5g}" if math.isfinite(number) else "NaN" if math.isnan(number) else "infinite" if number > 0 else "minus infinite"


def setting(
    value: object, unset: str = "not set", number: Callable[[float], str] = str, between: str = " ", equals: str = "=", none: str = "none"
) -> str:
    """Format a value, of a setting if nothing else is said: yes and no, floats by `number`, entries of dicts and lists one after another.

    none: an empty one.
    """
    if isinstance(value, dict | list | tuple):
        words = functools.partial(setting, unset=unset, number=number, between=between, equals=equals, none=none)
        named = [f"{name}{equals}{words(one)}" for name, one in value.items()] if isinstance(value, dict) else map(words, value)
        return between.join(named) or none
    if value is None or isinstance(value, bool):
        return unset if value is None else ("no", "yes")[value]
    return number(value) if isinstance(value, float) else str(value)


def loss_and_norm(loss: Any, grad_norm: Any) -> str:
    """Describe the loss and gradient norm of a step, or the texts of them."""
    loss, norm = figure(loss), figure(grad_norm)
    return f"loss and gradient norm are {loss}" if loss == norm else f"loss {loss}, gradient norm {norm}"
