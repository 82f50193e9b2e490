"""A run of our own trainer, for the loop that supervises it: its lab, its timeline, its GPU. Touches no torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from holdfast.base.files import Json, append_line
from holdfast.base.inert import brief
from holdfast.book import cards_of
from holdfast.book.kinds.failure import Failure
from holdfast.diagnosis.diagnose import diagnose_failure
from holdfast.experiments.course import state_before
from holdfast.experiments.health import HealthWatch
from holdfast.experiments.trials import trials_left
from holdfast.processes.attempt import Attempt
from holdfast.processes.pauses import Pauses
from holdfast.run.attempt import read_launch_spec
from holdfast.run.folder import RunFolder
from holdfast.run.timeline import Entry, add_entry, read_timeline, settings_at
from holdfast.run.types import Diagnosis, Ending, Launch, Verdict
from holdfast.supervision.launch import parts_ran_out
from holdfast.supervision.policy.ledgers import barren_rollbacks, deaths_in_step
from holdfast.supervision.policy.moves import Accept, Change, Done, GiveUp, LeaveGpu, Move, RollBack, StopRequested, Wait
from holdfast.supervision.policy.next_move import NO_TRIALS, Known, wants_trials
from holdfast.supervision.records import failures_so_far, past, read_history
from holdfast.supervision.supervise import View
from holdfast.supervision.training.hands import World
from holdfast.supervision.training.rollback import roll_back, rollbacks, take_up

_BEHIND_THE_MODEL = ("finished", "nonfinite", "damaged", "out_of_memory")  # ends of a trainer that has loaded it
Relaunch = Callable[[RunFolder], Launch]


class TrainerRun:
    """A prepared run. `relaunch`: how its trainer is started now; `orders`: what each launch.json also holds."""

    def __init__(self, relaunch: Relaunch, run: RunFolder, orders: Json, view: View[Attempt], hands: World) -> None:
        self.relaunch, self.run, self.orders, self.view, self.hands = relaunch, run, orders, view, hands
        self.places = [Path(place) for place in orders["memory_places"]]
        take_up(run, self.places)
        self.launch = relaunch(run)
        self.pauses, self.health = Pauses(run, view.tell, hands.clock), HealthWatch(run, hands.clock)

    def adopt(self) -> Attempt | None:
        return self.hands.adopt(self.run)

    def living(self, attempt: Attempt) -> dict[str, int]:
        return self.hands.living(attempt)

    def start(self) -> Attempt | None:
        if self.view.stopping() and self.run.attempts():
            return None
        if self._starts_otherwise():
            self.launch = self.relaunch(self.run)
        orders = self.orders | {"committed_before": self.run.committed()} | failures_so_far(self.run)
        attempt = self.hands.start(self.launch, self.run, orders)
        self.run.event("attempt_started", attempt=attempt.number, stood_by=attempt.stood_by)
        cards_of("failures")  # read while the trainer starts, so that nobody waits for it after a death
        return attempt

    def _starts_otherwise(self) -> bool:
        """True if a device may be gone, or there again, or processes that compute parts were too many for the memory."""
        if self.launch.settings.at_once > 1:
            return self.launch.ranks > 1 and parts_ran_out(self.run)
        return self.launch.ranks > 1 or _was_reduced(self.run)

    def watch(self, attempt: Attempt) -> Ending:
        """Wait until the attempt has ended; it is asked to stop where the user wants that, or its loss is in trouble."""
        ending = self.hands.watch(attempt, self.run, self._tick)
        self.health.look(at_once=True)  # a short run ends between two looks
        if self._has_computed(attempt, ending):
            self.pauses.found()
        return ending

    def _has_computed(self, attempt: Attempt, ending: Ending) -> bool:
        """True if an attempt's device was there: its pulse tells that, a row of its own, or an end that comes behind the model."""
        by_row = (self.run.last_step() or {}).get("attempt") == attempt.number
        return by_row or ending.kind in _BEHIND_THE_MODEL or (ending.kind != "device_gone" and attempt.pulse() is not None)

    def _tick(self, attempt: Attempt) -> bool:
        self.view.tick(attempt)
        if attempt.pulse() is not None:
            self.pauses.found()
        self.health.look()
        self.hands.stand_by(self.launch)
        return self.view.stopping() or self.health.trouble is not None

    def is_over(self, ending: Ending) -> bool:
        return ending.kind == "finished" and self.health.trouble is None

    def collect(self, attempt: Attempt, ending: Ending, earlier: bool) -> Known:
        run = self.run
        failure_report = self.hands.collect(attempt, run, ending)
        stop = self.view.stopping()
        trouble = self.health.trouble if ending.kind in ("interrupted", "finished") and not stop else None
        failures: dict[str, Failure] = cards_of("failures")
        if trouble is None:
            diagnosis, stood = diagnose_failure(failure_report, failures), run.committed()
        else:
            diagnosis, stood = Diagnosis.plain("divergence", 0.9, trouble.words()), trouble.step
        gone = ending.kind == "device_gone" and not stop
        others = self.relaunch(run) if gone and len(self.launch.devices) > 1 else self.launch
        fewer = others.ranks if others.devices != self.launch.devices else None
        return Known(
            failure_report,
            diagnosis,
            history=[*read_history(run), past(failure_report, diagnosis, self.launch)],
            timeline=read_timeline(run.timeline_file),
            asked=run.config().run,
            rolled=barren_rollbacks([*(facts for _, facts in rollbacks(run)), {"from": stood}]) - 1,
            away_s=self.pauses.missing(str(ending.facts.get("reason"))) if gone and fewer is None else None,
            trouble=trouble,
            back_to=state_before(run, trouble) if trouble else None,
            earlier=earlier,
            fewer=fewer,
        )

    def try_out(self, known: Known) -> Verdict | None:
        """Return what the lab finds out, where it is worth asking and may be asked; None where nothing was tried."""
        failure_report, trouble = known.failure_report, known.trouble
        if self.view.stopping() or not wants_trials(known):
            return NO_TRIALS if trouble else None
        if trouble is not None and known.back_to is not None:
            self.view.tell(f"{trouble.words()}; trying the steps around it with one change at a time")
            return self.hands.investigate_course(self.launch, self.run, trouble, known.back_to, self.view)
        if failure_report.step is None or not trials_left(self.run, failure_report.step):
            return None
        ended = f"{failure_report.ending.words()} at step {failure_report.step} again"
        self.view.tell(f"attempt {failure_report.attempt}: {ended}; trying it with one change at a time")
        deaths = deaths_in_step(known.history)
        return self.hands.investigate(self.launch, self.run, failure_report, known.diagnosis, deaths, self.view)

    def choose(self, known: Known, move: Move | StopRequested | Done) -> Move | StopRequested | Done:
        return move  # the policy's is whole

    def apply(self, known: Known, move: Move | StopRequested | Done) -> None:
        if known.trouble is None and isinstance(move, Move):
            self.health.tell_refuted()
        if not isinstance(move, Move):
            return
        match move:
            case Change():
                self._change(move)
            case LeaveGpu():
                self._leave_the_gpu(move)
            case RollBack():
                roll_back(self.run, self.places, move.to, move.settings, list(move.quarantined), move.reason)
        if isinstance(move, Change | LeaveGpu | RollBack):
            self.launch = self.relaunch(self.run)
        failure_report = known.failure_report
        at_the_end = isinstance(move, GiveUp) and failure_report.ending.kind != "finished"  # said by who concludes the run
        if not at_the_end and not (isinstance(move, Wait) and move.again):
            self.view.tell(brief(f"attempt {failure_report.attempt}: {move.reason}"))
        if known.trouble is None:
            self.pauses.after(progressed=failure_report.committed_after > failure_report.committed_before)
        else:
            self.health.settled(trouble_goes_on=isinstance(move, Accept))

    def _change(self, move: Change) -> None:
        """Put what was seen to help on the timeline, and the rows that were left out on record."""
        for row in move.quarantined:
            append_line(self.run.quarantine_file, row, durable=True)
        add_entry(self.run.timeline_file, Entry(move.from_step, move.settings, move.reason))
        self.run.event("remedy_applied", step=move.step, remedy=move.remedy, cause=move.cause, evidence=move.seen)
        self.health.remedied = True

    def _leave_the_gpu(self, move: LeaveGpu) -> None:
        """Put the CPU on the timeline, from the next step on; the GPU is not looked for any more."""
        card, step = cards_of("remedies")["cpu"], self.run.committed() + 1
        env = settings_at(read_timeline(self.run.timeline_file), step).env | card.env
        add_entry(self.run.timeline_file, Entry(step, card.settings | {"env": env}, move.reason))
        self.run.event("setting_changed", what=f"device cuda -> cpu from step {step} on", reason=move.reason)
        self.pauses = Pauses(self.run, self.view.tell, self.hands.clock)


def _was_reduced(run: RunFolder) -> bool:
    """True if the newest attempt was one of several ranks, or what was left of them."""
    number = max(run.attempts(), default=0)
    orders = read_launch_spec(run.attempt(number)) if number else None
    return orders is not None and orders.devices != [0]
