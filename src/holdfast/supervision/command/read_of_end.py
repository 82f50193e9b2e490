"""What is read of the end of a command's attempt: the evidence, its cause, whether training was complete, the attempts before it."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import replace

from holdfast.base.files import Json, last_line, read_json
from holdfast.book import cards_of
from holdfast.book.kinds.launcher import LauncherCard
from holdfast.diagnosis.arguments import FRAME
from holdfast.diagnosis.diagnose import diagnose_failure
from holdfast.diagnosis.later_training import trains_later
from holdfast.diagnosis.logs.file import read_log
from holdfast.machine.gpu_memory import gpu_memory
from holdfast.machine.place import Place
from holdfast.processes.attempt import Attempt
from holdfast.run.attempt import LaunchSpec, closed_attempts, read_launch_spec
from holdfast.run.command import Command
from holdfast.run.folder import RunFolder
from holdfast.run.types import FULL_DISK_BYTES, Diagnosis, Ending, FailureReport
from holdfast.supervision.command import attempts
from holdfast.supervision.command.good_end import of_what_was_left
from holdfast.supervision.command.signs import ProgressSigns
from holdfast.supervision.command.states import States
from holdfast.supervision.evidence import collect, free_bytes
from holdfast.supervision.policy.ledgers import PastAttempt
from holdfast.supervision.policy.resuming import resumes_by


class ReadOfEnd:
    """Of one attempt. left: what a command that ended well left running, in words."""

    def __init__(
        self,
        run: RunFolder,
        command: Command,
        card: LauncherCard | None,
        states: States,
        seen: ProgressSigns | None,
        attempt: Attempt,
        ending: Ending,
    ) -> None:
        self.run, self.command, self.card, self.states, self.seen = run, command, card, states, seen
        self.attempt, self.ending = attempt, ending
        self.account = read_json(attempt.folder / "account.json") or {}
        self.left = ""

    def wreck(self) -> FailureReport:
        """Return the evidence, with what the callback has written down."""
        orders = read_launch_spec(self.attempt.folder) or LaunchSpec({})
        began, step = int(orders.facts.get("resumed_step") or 0), self.seen.step if self.seen else None
        if self.seen and self.seen.first and self.seen.first < began:
            began = 0  # it did not do as it was told
        flight = last_line(self.attempt.folder / "samples.jsonl") or {}  # with a step that did not come to its end, or none
        if flight.get("step", 0) <= (step or 0):
            flight = {}  # its notes ended before it
        return replace(
            collect(self.attempt, self.run, self.ending),
            step=flight.get("step", step),
            samples=tuple(flight.get("samples") or ()),
            committed_before=began,
            committed_after=max(began, step or 0),
            phase=self.account.get("phase"),
            gpu_memory=None if self.ending.kind == "finished" else gpu_memory(Place()),
        )

    def diagnosis(self, failure_report: FailureReport) -> Diagnosis:
        """Diagnose the attempt from the callback's account, the evidence and the output."""
        if failure_report.ending.kind == "finished":
            return Diagnosis("unknown", 0.0)
        if self.account.get("cause"):
            reason = str(self.account.get("reason", ""))
            return replace(Diagnosis.plain(str(self.account["cause"]), 0.95, reason), explanation=reason)
        log = self.attempt.folder / "output.log"  # missing where the disk failed before the command was started
        with log.open("rb") if log.exists() else io.BytesIO() as stream:
            found = diagnose_failure(failure_report, cards_of("failures"), read_log(stream))
        if (full := self.full_disk(failure_report)) and failure_report.ending.kind in ("error", "killed"):
            return Diagnosis.plain("disk_full", 0.95, f"{full} is full", *found.words())
        return found

    def after_training(self, diagnosis: Diagnosis, lines: Sequence[str]) -> Json | None:
        """Return what failed or hung after training was complete: {result, ending, cause, evidence}; None where it is to be started again.

        lines: its last output, whose traceback tells where its script stood; the callback tells it better.
        One that was killed from outside may have had work left: it goes on from its last checkpoint once, where it can be told to.
        """
        if self.ending.kind not in ("error", "killed", "hang", "vanished") or (state := self.states.complete(self.seen)) is None:
            return None
        told = (read_json(self.attempt.folder / "pulse.json") or {}).get("called_at") or FRAME.findall("\n".join(lines))
        if trains_later((str(file), int(line)) for file, line in told):
            return None  # it was the first of several
        orders = read_launch_spec(self.attempt.folder) or LaunchSpec({})
        again = self.command.callback or resumes_by(self.command.argv, self.card) is not None
        if self.ending.from_outside and again and int(orders.facts.get("resumed_step") or 0) < (state.step or 0):
            return None
        why = [str(self.ending.facts["reason"])] if self.ending.kind == "hang" and self.ending.facts.get("reason") else diagnosis.words()
        after = {"result": state.name, "ending": self.ending.words(), "cause": diagnosis.cause, "evidence": "; ".join(why) or None}
        self.run.event("ended_after_training", attempt=self.attempt.number, step=state.step, **after)
        return after

    def in_background(self) -> str:
        """Return why an end that left something running does not count as one; empty where it does."""
        names = self.ending.facts.get("left") or [] if self.ending.kind == "finished" else []
        if not names:
            return ""
        self.run.event("left_running", names=names)
        why, self.left = of_what_was_left(self.ending, names, self.seen, attempts.is_left(self.attempt))
        return why

    def full_disk(self, failure_report: FailureReport) -> str:
        """Return the disk that takes no more; empty where each does."""
        if failure_report.disk_is_full:
            return f"the disk of {self.run.path}"
        place = self.command.place
        if place is not None and place.is_dir() and os.access(place, os.W_OK) and free_bytes(place) < FULL_DISK_BYTES:
            return f"the disk of {place}"
        return ""

    def history(self, failure_report: FailureReport, diagnosis: Diagnosis, from_outside: bool) -> list[PastAttempt]:
        """Return the attempts that ended since the run was last given up or stopped, this one last."""
        found: list[tuple[LaunchSpec, str, str, bool]] = []
        ours = {event["attempt"] for event in self.run.events() if event["event"] == "option_unknown"}  # our doing, nobody else's
        for number, end in closed_attempts(self.run):
            if not end.goes_on:
                found.clear()
            elif number not in ours:
                orders = read_launch_spec(self.run.attempt(number)) or LaunchSpec({})
                found.append((orders, end.cause, end.ending.words(), end.ending.from_outside))
        orders = read_launch_spec(self.run.attempt(failure_report.attempt)) or LaunchSpec({})
        found.append((orders, diagnosis.cause, failure_report.ending.words(), from_outside))
        stood = [*(int(orders.facts.get("stands_at") or 0) for orders, *_ in found), self.states.stands_at()]
        return [
            PastAttempt(None, cause, words, str(orders.facts.get("remedy") or ""), stood[at + 1] > stood[at], from_outside=outside)
            for at, (orders, cause, words, outside) in enumerate(found)
        ]
