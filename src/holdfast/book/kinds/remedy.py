"""A remedy card: one change a run can go on with, tried on the failing step before it is used. Which one helps is the lab's to see."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from holdfast.book.kinds.catalog import Card
from holdfast.book.kinds.failure import Cause
from holdfast.config.settings import PartialSettings, Settings, checked


class RemedyCard(Card):
    """A change of settings or of the environment. `hits` and `misses` are causes it is, and is not, a likely cure for.

    `cost`: what the run pays for it, as a factor on its time, measured where a source says so; cheapest are tried first. Settings may
    say "half" for half of what is in force. A last resort comes after all others, where there is a GPU and `run.allow_cpu`
    says so.
    """

    settings: PartialSettings = Field(default_factory=dict)
    env: dict[str, str | None] = Field(default_factory=dict)
    cost: float = Field(ge=1)
    device: Literal["any", "gpu", "amd"] = "any"
    last_resort: bool = False

    def matches(self, evidence: Cause) -> bool:
        """Return whether it is a likely cure for this cause."""
        return evidence in self.hits

    @field_validator("settings")
    @classmethod
    def _legal(cls, change: PartialSettings) -> PartialSettings:
        checked({name: 1 if value == "half" else value for name, value in change.items()})
        return change

    def change(self, settings: Settings) -> PartialSettings:
        """Return the settings it changes where `settings` are in force; empty where they hold already."""
        now = {name: getattr(settings, name) for name in self.settings}
        wanted = {name: now[name] // 2 if value == "half" else value for name, value in self.settings.items()}
        return {name: value for name, value in wanted.items() if now[name] != value}
