"""Watch the course of a run's committed steps: tell what is odd once, hold a state from before a rise of the loss. Stops nothing itself."""

from __future__ import annotations

import time

from holdfast.base.files import Json, Tail
from holdfast.book import cards_of
from holdfast.diagnosis.divergence import BEFORE, Trouble, trouble
from holdfast.diagnosis.health_signs import FIRST_WORD_AT, first_word, odd
from holdfast.processes.pauses import Clock
from holdfast.run.folder import RunFolder
from holdfast.run.remedies import OF_REMEDIES, WATCHED, helped, refuted
from holdfast.run.snapshots.checkpoint import hold_until

_LOOK_EVERY_S = 2.0


class HealthWatch:
    """Looks at the newest rows now and then. `trouble`: the loss has left its level for good, and something can still be done."""

    def __init__(self, run: RunFolder, clock: Clock = time) -> None:
        self.run, self.clock = run, clock
        self.acts = run.config().run.rollback
        self.signs = list(cards_of("signs").values())
        self._events, self._evaluations = Tail(run.events_file, key="event"), Tail(run.evaluations_file)
        events, _ = self._events.new()
        self.told = {event["sign"] for event in events if event["event"] == "sign"}
        self._past = [event for event in events if event["event"] in OF_REMEDIES]
        self._measured: dict[int, float | None] = {}
        self.remedied = any(event["event"] == "remedy_applied" for event in events)
        self.trouble: Trouble | None = None
        self._held: int | None = None
        self._seen: tuple[int, int] | None = None
        self._looked = -_LOOK_EVERY_S

    def look(self, at_once: bool = False) -> None:
        """Look at the journal every two seconds, or `at_once`, where it has grown. Called all the while."""
        if not at_once and self.clock.monotonic() - self._looked < _LOOK_EVERY_S:
            return
        self._looked = self.clock.monotonic()
        facts = self.run.steps_file.stat() if self.run.steps_file.exists() else None
        state = (facts.st_size, facts.st_mtime_ns) if facts else None  # after a rollback it may grow to the size it had
        if state == self._seen:
            return
        self._seen = state
        rows = self.run.newest_steps()
        if not rows or rows[-1]["step"] < FIRST_WORD_AT:
            return
        self._look_for_signs(rows)
        if self.acts:
            self._look_at_course(rows)
        if self.remedied:
            self._look_at_remedies(rows[-1]["step"])

    def settled(self, trouble_goes_on: bool) -> None:
        """Forget the trouble that was dealt with; `trouble_goes_on`: it cannot be, and is not to be looked at again."""
        self.trouble = None
        self.acts = self.acts and not trouble_goes_on

    def _look_for_signs(self, rows: list[Json]) -> None:
        found = odd(self._with_evaluations(rows), self.signs)
        if "first" not in self.told:
            self._tell("first", rows[-1]["step"], first_word(rows, found))
            self.told |= set(found)
        for name, words in found.items():
            if name not in self.told:
                self._tell(name, rows[-1]["step"], words)

    def _with_evaluations(self, rows: list[Json]) -> list[Json]:
        """Return the rows, with the held-out loss where one was measured after the step."""
        new, replaced = self._evaluations.new()
        self._measured = ({} if replaced else self._measured) | {row["step"]: row["loss"] for row in new}
        return [row | {"held_out_loss": self._measured[row["step"]]} if row["step"] in self._measured else row for row in rows]

    def _look_at_course(self, rows: list[Json]) -> None:
        found = trouble(rows)
        held = None if found is None else max(0, found.onset - BEFORE)
        if held != self._held and (held is None or self._held is None or held < self._held):
            self._held = held
            hold_until(self.run, held)
        self.trouble = found if found and found.lasting else None

    def _look_at_remedies(self, step: int) -> None:
        for one in helped(self._remedies(), step):
            says = f"{one['remedy']} helped: {step - one['step'] + 1} steps since without the trouble it was for"
            self.run.event("remedy_helped", step=one["step"], remedy=one["remedy"], says=says)
        self.remedied = any(event["event"] == "remedy_applied" and step < event["step"] + WATCHED for event in self._past)

    def _remedies(self) -> list[Json]:
        """Return the events so far that say what became of remedies."""
        new, replaced = self._events.new()
        self._past = [*([] if replaced else self._past), *(event for event in new if event["event"] in OF_REMEDIES)]
        return self._past

    def tell_refuted(self) -> None:
        """Journal each remedy that did not help, once. Called after a death; only a remedy that is watched can be refuted by it."""
        if not self.remedied:
            return
        events = self._remedies()
        told = {event["remedy"] for event in events if event["event"] == "remedy_refuted"}
        for remedy, reason in refuted(events).items():
            if remedy not in told:
                self.run.event("remedy_refuted", remedy=remedy, reason=reason)

    def _tell(self, sign: str, step: int, words: str) -> None:
        self.told.add(sign)
        self.run.event("sign", sign=sign, step=step, says=words)
