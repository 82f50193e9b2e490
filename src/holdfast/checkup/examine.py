"""Judge a machine: run every check and variable card over it. Reading the machine is machine/read.py's job."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from functools import cache
from typing import Any, Literal

from holdfast.base.files import Json
from holdfast.book import cards_of
from holdfast.book.kinds.check import Case
from holdfast.config.config import Config
from holdfast.machine.machine_file import read
from holdfast.run.plan import Plan
from holdfast.run.types import Finding

Readiness = Literal["ready", "risky", "blocked"]
ORDER = {"block": 0, "warn": 1, "info": 2}
SHELVES = ("checks", "variables")
VERSIONS = ("peft-version", "transformers-version", "transformers-torch", "torchao-peft")  # cards of libraries that cannot be gone on with


def examine(facts: Json, config: Config | None = None, plan: Plan | None = None) -> list[Finding]:
    """List findings on a machine, and with `config` and `plan` on that run on it, the blocking ones first."""
    case = Case(read(facts), config, plan)
    found = [finding for shelf in SHELVES for card in cards(shelf).values() for finding in _told(card, case)]
    return sorted(found, key=lambda finding: ORDER[finding.severity])


def blocked_by_versions(facts: Json) -> list[Finding]:
    """List the findings on versions of libraries for which `train` stops."""
    case = Case(read(facts), None, None)
    return [finding for name in VERSIONS for finding in _told(cards("checks")[name], case) if finding.severity == "block"]


@cache
def cards(shelf: str) -> dict[str, Any]:
    """Return the cards of a shelf, read once a process."""
    return cards_of(shelf)


def _told(card: Any, case: Case) -> list[Finding]:
    try:
        return list(card.findings(case))
    except Exception as error:  # noqa: BLE001  (the card runner: a card that crashes is a finding, never a pass)
        where = traceback.extract_tb(error.__traceback__)[-1]
        message = f"the check {card.id} failed, so what it looks for is unknown: {type(error).__name__}: {error} (line {where.lineno})"
        return [Finding(str(card.id), "warn", message, "please report this line")]


def verdict(findings: Iterable[Finding]) -> Readiness:
    worst = min((ORDER[finding.severity] for finding in findings), default=2)
    return ("blocked", "risky", "ready")[worst]
