"""A rung card: one faster way to compute, tried by `holdfast tune` against plain kernels before a run may use it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import Field, field_validator

from holdfast.book.kinds.catalog import Card
from holdfast.config.settings import PartialSettings, Settings, checked


class RungCard(Card):
    """A change of settings or of the environment. `hits` and `misses` are devices ("cpu", "cuda", "amd") it is, and is not, for.

    `order`: lower ones are climbed first. Settings may say "half" or "double" of what is in force. `risk`: how it betrays, where it does;
    `step_down`: the rung below, which a run goes back to.
    """

    settings: PartialSettings = Field(default_factory=dict)
    env: dict[str, str | None] = Field(default_factory=dict)
    order: int = Field(ge=1)
    risk: str = Field(min_length=1)
    step_down: str = "the reference"

    def matches(self, evidence: str) -> bool:
        """Return whether it is for this device."""
        return evidence in self.hits

    def details(self) -> Iterator[str]:
        """Yield settings, risk and the way back, as Markdown."""
        changes = [f"`{name}: {value}`" for name, value in {**self.settings, **self.env}.items()]
        yield f"Changes {', '.join(changes)}. Risk: {self.risk}. Step down: {self.step_down}."

    @field_validator("settings")
    @classmethod
    def _legal(cls, change: PartialSettings) -> PartialSettings:
        checked({name: 1 if value in ("half", "double") else value for name, value in change.items()})
        return change

    def change(self, settings: PartialSettings) -> PartialSettings:
        """Return the settings it changes where `settings` are in force; empty where they hold already."""
        now = Settings.model_validate(settings)
        wanted: dict[str, Any] = {}
        for name, value in self.settings.items():
            held = getattr(now, name)
            wanted[name] = max(1, held // 2) if value == "half" else 2 * held if value == "double" else value
        return {name: value for name, value in wanted.items() if getattr(now, name) != value}
