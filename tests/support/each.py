"""One test for a rule that many things keep: all that break it are told together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

Case = TypeVar("Case")


def assert_each(cases: Mapping[str, Case], check: Callable[[Case], None]) -> None:
    """Have each case checked; where some fail, one AssertionError names each of them and says why. No case at all is a failure too."""
    assert cases, "nothing to check"
    wrong = {}
    for name, case in cases.items():
        try:
            check(case)
        except Exception as error:  # noqa: BLE001  (whatever it is, the case's name belongs to it)
            wrong[name] = f"{type(error).__name__}: {error}"
    if wrong:
        raise AssertionError(f"{len(wrong)} of {len(cases)}:\n" + "\n".join(f"{name}: {why}" for name, why in wrong.items()))
