"""What the book knows against a cause, tried by starting a command with one variable or argument changed. Only with leave (--try)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.base.files import read_json
from holdfast.book import cards_of
from holdfast.book.kinds.launcher import LauncherCard
from holdfast.book.kinds.remedy import RemedyCard
from holdfast.processes.attempt import Attempt
from holdfast.run.attempt import LaunchSpec, read_launch_spec
from holdfast.run.command import Command
from holdfast.run.folder import RunFolder
from holdfast.supervision.policy.resuming import changed


@dataclass(frozen=True)
class RemedyChange:
    """name: the remedy's, empty for none; told: what it changes, in words."""

    name: str = ""
    told: str = ""
    env: dict[str, str | None] = field(default_factory=dict)
    remedy: RemedyCard | None = None
    card: LauncherCard | None = None

    def apply(self, words: Sequence[str]) -> tuple[tuple[str, ...], dict[str, str | None]]:
        """Return the command and the variables with this change."""
        found = changed(words, self.card, self.remedy) if self.remedy is not None and not self.remedy.env else None
        return (found[0] if found else tuple(words)), dict(self.env)


class Remedies:
    """The remedies of one command's run, in the order of their cost; each is tried once for its cause."""

    def __init__(self, run: RunFolder, command: Command, card: LauncherCard | None) -> None:
        self.run, self.command, self.card = run, command, card
        self.cards: dict[str, RemedyCard] = cards_of("remedies")
        events = list(run.events())
        self.tried = {event["remedy"] for event in events if event["event"] == "remedy_applied"}
        self.helped = {event["remedy"] for event in events if event["event"] == "remedy_helped"}
        refuted = {event["remedy"] for event in events if event["event"] == "remedy_refuted"}
        pending = [event["remedy"] for event in events if event["event"] == "remedy_applied" and event["remedy"] not in refuted]
        self.current = self._change(pending[-1]) if pending and command.tries else RemedyChange()

    def now(self) -> RemedyChange:
        """Return the change that the next attempt is started with."""
        return self.current

    def left(self, cause: str) -> bool:
        """True if something untried against this cause is left that this command and machine can be given."""
        return bool(self._for(cause))

    def take(self, cause: str) -> None:
        """Go on with the cheapest untried remedy."""
        if self.current.name and self.current.name not in self.helped:
            self.run.event("remedy_refuted", remedy=self.current.name, change=self.current.told, cause=cause)
        self.current = self._for(cause)[0]
        self.tried.add(self.current.name)
        self.run.event("remedy_applied", step=0, remedy=self.current.name, change=self.current.told, cause=cause, evidence="tried")

    def settle(self, attempt: Attempt, stands_at: int) -> None:
        """Record, after an attempt, whether its remedy took it further than the run had come."""
        name = self.current.name
        orders = read_launch_spec(attempt.folder) or LaunchSpec({})
        if not name or name in self.helped or orders.facts.get("remedy") != name:
            return
        code = (read_json(attempt.folder / "ending.json") or {}).get("code")
        stood = int(orders.facts.get("stands_at") or 0)
        if code == 0 or stands_at > stood:
            self.helped.add(name)
            seen = "the command then ended well" if code == 0 else f"the run then came from step {stood} to step {stands_at}"
            self.run.event("remedy_helped", step=stands_at, remedy=name, change=self.current.told, evidence=seen)

    def _for(self, cause: str) -> list[RemedyChange]:
        machine = read_json(self.run.machine_file) or {}
        gpus = machine.get("gpus") or []
        vendors = {gpu.get("vendor") for gpu in gpus}
        fits = {"any": True, "gpu": bool(gpus), "amd": "amd" in vendors}
        known = [card for card in self.cards.values() if card.matches(cause) and not card.last_resort and fits[card.device]]
        found = [self._change(card.id) for card in sorted(known, key=lambda card: (card.cost, card.id)) if card.id not in self.tried]
        return [change for change in found if change.told]

    def _change(self, name: str) -> RemedyChange:
        remedy = self.cards.get(name)
        if remedy is None:
            return RemedyChange()
        if remedy.env:
            told = ", ".join(f"{key}={value}" if value is not None else f"without {key}" for key, value in remedy.env.items())
            return RemedyChange(name, told, dict(remedy.env), remedy, self.card)
        found = changed(self.command.argv, self.card, remedy)
        return RemedyChange(name, found[1], {}, remedy, self.card) if found else RemedyChange()
