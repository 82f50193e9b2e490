"""Compare versions as people write them: 2.5.1+rocm6.2, 6.8.0-45-generic, 12.x. A text without a number is older than all."""

from __future__ import annotations

import re

__version__ = "0.1.0"  # of holdfast itself
_NUMBERS = re.compile(r"\d{1,9}(?:\.\d{1,9})*")
_TERM = re.compile(r"(>=|<=|<|>|==)\s*([\w.]+)")


def install(extra: str) -> str:
    """Return the line that installs what an extra of pyproject.toml holds; holdfast is installed from its checkout, not from an index."""
    return f"in holdfast's checkout: pip install '.[{extra}]'"


def version(text: str) -> tuple[int, ...]:
    """Parse the leading numbers of a version: "2.5.1+rocm6.2" -> (2, 5, 1)."""
    numbers = _NUMBERS.match(text.strip())
    return tuple(int(part) for part in numbers.group().split(".")) if numbers else ()


def release(text: str) -> tuple[int, ...]:
    """Parse major and minor: "2.5.1+rocm6.2" -> (2, 5)."""
    return version(text)[:2]


def within(text: str | None, wanted: str) -> bool:
    """True if a version is in a range like ">=2.8 <2.12"; "==2.10" compares the parts that are given. Unknown is in no range.

    >>> within("2.11.0+rocm7.2", ">=2.8 <2.12"), within("2.10.3", "==2.10"), within(None, ">=0")
    (True, True, False)
    """
    found = version(text or "")
    if not found:
        return False
    return all(_holds(found, sign, version(number)) for sign, number in _TERM.findall(wanted))


def _holds(found: tuple[int, ...], sign: str, bound: tuple[int, ...]) -> bool:
    if sign == "==":
        return found[: len(bound)] == bound
    width = max(len(found), len(bound))
    left, right = found + (0,) * (width - len(found)), bound + (0,) * (width - len(bound))
    return {">=": left >= right, "<=": left <= right or found[: len(bound)] == bound, "<": left < right, ">": left > right}[sign]
