"""Checks: cards that look at a machine and tell findings. A check is a condition and a sentence (YAML), or a function (Python)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import cached_property, partial
from typing import Any, Literal, get_args

from pydantic import BaseModel, Field, model_validator

from holdfast.base.versions import within
from holdfast.book.kinds.catalog import Card, ClaimStanding
from holdfast.config.config import Config
from holdfast.machine.facts import Gpu, Machine
from holdfast.machine.machine_file import read
from holdfast.run.plan import Plan
from holdfast.run.types import Finding

Severity = Literal["block", "warn", "info"]
_HIDERS = {"amd": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"), "nvidia": ("CUDA_VISIBLE_DEVICES",)}


@dataclass(frozen=True)
class Case:
    """What a check looks at. `config` and `plan` are None when the machine alone is judged."""

    machine: Machine
    config: Config | None = None
    plan: Plan | None = None

    @cached_property
    def candidates(self) -> tuple[Gpu, ...]:
        """GPUs of the vendor torch was built for (all, where that is unknown or the build is for none), visible or not."""
        torch = self.machine.torch
        return self.machine.of(torch.vendor) if torch and torch.vendor else self.machine.gpus

    @cached_property
    def visible(self) -> tuple[Gpu, ...]:
        """The candidates that no variable hides. Names of devices (UUIDs) are taken to hide none."""
        return tuple(gpu for vendor in ("amd", "nvidia") for gpu in self._shown(vendor)) or tuple(
            gpu for gpu in self.candidates if gpu.vendor not in _HIDERS
        )

    def _shown(self, vendor: str) -> list[Gpu]:
        cards = [gpu for gpu in self.candidates if gpu.vendor == vendor]
        names = _HIDERS[vendor]
        if self.machine.env.get("HIP_VISIBLE_DEVICES"):
            names = tuple(name for name in names if name != "CUDA_VISIBLE_DEVICES")
        for name in names:
            value = self.machine.env.get(name)
            if value is not None and all(part.strip().lstrip("-").isdecimal() for part in value.split(",") if part.strip()):
                wanted = [int(part) for part in value.split(",") if part.strip()]
                wrong = next((at for at, index in enumerate(wanted) if not 0 <= index < len(cards)), None)
                cards = [cards[index] for index in wanted[:wrong]]  # what follows a number that is none is hidden, too
        return cards

    @cached_property
    def cards(self) -> tuple[Gpu, ...]:
        """The visible GPUs one would train on: the discrete ones, else the integrated."""
        return tuple(gpu for gpu in self.visible if not gpu.integrated) or self.visible

    @cached_property
    def one_of_each(self) -> tuple[Gpu, ...]:
        """One of the cards for each architecture among them; none for a card whose architecture is unknown."""
        return tuple({gpu.arch: gpu for gpu in self.cards if gpu.arch}.values())

    def words(self, gpu: Gpu | None = None) -> dict[str, str]:
        """Return what a message may name: {torch} {rocm} {kernel} {gpu} {arch} and packages by name."""
        machine, card = self.machine, gpu or (self.cards[0] if self.cards else Gpu())
        torch = machine.torch
        told: dict[str, str | None] = {
            "torch": torch.version if torch else None,
            "rocm": torch.rocm if torch else None,
            "kernel": machine.kernel,
            "gpu": card.words(),
            "arch": card.arch,
            **{name.replace("-", "_"): value for name, value in machine.packages.items()},
        }
        return {name: value or "unknown" for name, value in told.items()}


class MachineCondition(BaseModel, frozen=True, extra="forbid"):
    """A condition on a machine; all that is given must hold, and what is unknown does not hold. Versions are ranges: ">=2.8 <2.12"."""

    backend: Literal["rocm", "cuda", "cpu"] | None = Field(None, description="what torch was built for")
    torch: str | None = None
    rocm: str | None = Field(None, description="the ROCm torch was built with")
    kernel: str | None = None
    arch: tuple[str, ...] | None = Field(
        None, description="patterns: gfx11*, sm_90; one of the GPUs one would train on has such an architecture"
    )
    at_least: int | None = Field(None, description="so many such GPUs")
    package: dict[str, str] = Field(default_factory=dict, description="installed packages and their ranges; * for any version")
    firmware: dict[str, str] = Field(default_factory=dict, description="firmware and a pattern its version has")

    def gpu(self, case: Case) -> Gpu | None:
        """Return the first GPU the condition is about; one without facts when it is about none; None when it does not hold."""
        if not (self._versions(case) and self._tables(case)):
            return None
        if self.arch is None and self.at_least is None:
            return case.cards[0] if case.cards else Gpu()
        fitting = [gpu for gpu in case.cards if self._fits(gpu)]
        return fitting[0] if len(fitting) >= (self.at_least or 1) else None

    def _fits(self, gpu: Gpu) -> bool:
        return self.arch is None or any(fnmatch(gpu.arch or "", pattern) for pattern in self.arch)

    def _versions(self, case: Case) -> bool:
        machine, torch = case.machine, case.machine.torch
        if self.backend and (torch is None or torch.backend != self.backend):
            return False
        asked = (
            (self.torch, torch.version if torch else None),
            (self.rocm, torch.rocm if torch else None),
            (self.kernel, machine.kernel),
        )
        return all(wanted is None or within(value, wanted) for wanted, value in asked)

    def _tables(self, case: Case) -> bool:
        machine = case.machine
        installed = all(
            machine.package(name) is not None if wanted == "*" else within(machine.package(name), wanted)
            for name, wanted in self.package.items()
        )
        return installed and _all_match(self.firmware, machine.firmware)


def _all_match(wanted: Mapping[str, str], found: Mapping[str, str]) -> bool:
    return all(name in found and re.fullmatch(pattern, found[name]) for name, pattern in wanted.items())


class Rule(BaseModel, frozen=True, extra="forbid"):
    """One condition and what is told when it holds. `{names}` in message and fix are those of Case.words."""

    when: MachineCondition
    severity: Severity
    message: str
    fix: str
    standing: ClaimStanding = "confirmed"
    source: str = Field("", pattern=r"^(https?://\S+)?$")

    def findings(self, case: Case) -> Iterator[Finding]:
        gpu = self.when.gpu(case)
        if gpu is not None:
            words = case.words(gpu)
            yield Finding("", self.severity, self.message.format_map(words), self.fix.format_map(words), self.source, self.standing)


class Check(Card):
    """A check of a machine. The first of its `rules` that holds is told, or what `look` finds. `hits`, `misses`: machine files."""

    rules: tuple[Rule, ...] = ()
    look: Callable[[Case], Iterator[Finding]] | None = Field(None, exclude=True)

    @model_validator(mode="after")
    def _one_way(self) -> Check:
        if bool(self.rules) == bool(self.look):
            raise ValueError("give rules, or look")
        return self

    def findings(self, case: Case) -> Iterator[Finding]:
        """Yield the findings of this check, with its own name and, where a finding has no better one, its source."""
        if self.look:
            found = self.look(case)
        else:
            told = next((told for rule in self.rules if (told := list(rule.findings(case)))), [])
            found = iter(told)
        for finding in found:
            yield replace(finding, id=finding.id or self.id, source=finding.source or self.source[0])

    def matches(self, evidence: Any) -> bool:
        return any(True for _ in self.findings(Case(read(evidence))))

    def details(self) -> Iterator[str]:
        for rule in self.rules:
            yield f"- {rule.severity} ({rule.standing}): {rule.message}"


# What `look` tells: (message, fix, source, standing), as Finding has them.
block, warn, info = (partial(Finding, "", severity) for severity in get_args(Severity))
