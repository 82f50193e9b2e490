"""Variables: cards on one environment variable each: who reads it, since when, what it does, which values are wrong, where to set it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from holdfast.book.kinds.catalog import Card, ClaimStanding
from holdfast.book.kinds.check import Case, MachineCondition, Rule
from holdfast.machine.machine_file import read
from holdfast.run.types import Finding


@dataclass(frozen=True)
class VariableAdvice:
    """A variable to set on a machine, why, and how sure that is."""

    name: str
    value: str
    reason: str
    standing: ClaimStanding
    source: str


class Value(Rule):
    """A rule about values of the variable: those that the pattern `value` matches as a whole."""

    value: str = ".*"


class Recommendation(BaseModel, frozen=True, extra="forbid"):
    """A value to set where the condition holds. Only a confirmed one is ever set by holdfast itself."""

    when: MachineCondition
    value: str
    reason: str
    standing: ClaimStanding
    source: Annotated[str, Field(pattern=r"^https?://\S+$")]


class Variable(Card):
    """One environment variable. When it is set where nothing reads it, that is told, else the first of its `rules` that holds.

    `advise` and `recommend` say where to set it.
    """

    name: str = Field(pattern=r"^[A-Z][A-Z0-9_]*$")
    reads: str = Field(min_length=1, description="the program or library that looks at it")
    backend: Literal["rocm", "cuda"] | None = Field(None, description="the builds of torch that its reader belongs to")
    since: str = ""
    until: str = ""
    does: str = Field(min_length=1)
    rules: tuple[Value, ...] = ()
    recommend: tuple[Recommendation, ...] = ()
    advise: Callable[[Case], Iterator[VariableAdvice]] | None = Field(None, exclude=True)

    def findings(self, case: Case) -> Iterator[Finding]:
        value, torch = case.machine.env.get(self.name), case.machine.torch
        if value is not None and self.backend and torch and torch.backend not in (None, self.backend):
            message = f"{self.name} has no effect: it is read by {self.reads}, which torch {torch.version} does not use"
            yield Finding(self.id, "info", message, f"unset {self.name}", self.source[0])
            return
        for rule in self.rules if value is not None else ():
            told = list(rule.findings(case)) if re.fullmatch(rule.value, value or "") else []
            if told:
                yield from (replace(finding, id=self.id, source=finding.source or self.source[0]) for finding in told)
                return

    def advice(self, case: Case) -> Iterator[VariableAdvice]:
        if self.advise:
            yield from self.advise(case)
        for entry in self.recommend:
            if entry.when.gpu(case) is not None:
                yield VariableAdvice(self.name, entry.value, entry.reason, entry.standing, entry.source)

    def matches(self, evidence: Any) -> bool:
        case = Case(read(evidence))
        return any(True for _ in self.findings(case)) or any(True for _ in self.advice(case))

    def details(self) -> Iterator[str]:
        lasted = "".join(f", {word} {when}" for word, when in (("since", self.since), ("until", self.until)) if when)
        yield f"`{self.name}` is read by {self.reads}{lasted}. {self.does}"
        for rule in self.rules:
            yield f"- `{rule.value}`: {rule.severity} ({rule.standing}): {rule.message}"
        for entry in self.recommend:
            yield f"- set to `{entry.value}` ({entry.standing}): {entry.reason}"
