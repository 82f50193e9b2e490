"""The loop above somebody else's command: start or adopt, watch, collect, decide, record; until it has ended well or is given up.

It is `supervision/supervise.py` without what a foreign program does not give: no step that could be run again, no timeline, no lab.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace

from holdfast.base.files import append_line, last_line, read_json
from holdfast.book import cards_of
from holdfast.book.kinds.launcher import LauncherCard
from holdfast.diagnosis.diagnose import diagnose_failure
from holdfast.diagnosis.logs.file import read_log
from holdfast.machine.gpu_memory import gpu_memory
from holdfast.machine.place import Place
from holdfast.processes.attempt import Attempt
from holdfast.processes.process import adopt, living_pids
from holdfast.run.attempt import LaunchSpec, closed_attempts, read_launch_spec
from holdfast.run.command import Command, write_command
from holdfast.run.folder import RunFolder
from holdfast.run.types import FULL_DISK_BYTES, Diagnosis, Ending, FailureReport
from holdfast.supervision.command import attempts
from holdfast.supervision.command.environment import environment_of
from holdfast.supervision.command.remedies import Remedies
from holdfast.supervision.command.signs import Seen, Signs
from holdfast.supervision.command.states import State, States
from holdfast.supervision.evidence import collect, free_bytes
from holdfast.supervision.policy.hang_pace import Pace
from holdfast.supervision.policy.moves import GiveUp, Move, Resume, Stop
from holdfast.supervision.policy.next_try import NextTry, Try, next_try
from holdfast.supervision.policy.resuming import added_by, resumed, resumes_by, says_unknown
from holdfast.supervision.records import record

_ROW_EVERY_S = 1.0
_EARLY_S = 60.0  # a command that is gone so soon, and left something running, has gone to the background


@dataclass(frozen=True)
class CommandView:
    """What is told to whoever looks on. `wish`: 0 go on, 1 stop, 2 at once; `follow`: show this attempt's output from now on."""

    tell: Callable[[str], None]
    wish: Callable[[], int]
    follow: Callable[[Attempt, bool], None]
    tick: Callable[[Seen], None]


@dataclass(frozen=True)
class Outcome:
    """How a command's run ended: what was decided last, and on what grounds. doubt: what speaks against what a good end has left."""

    move: NextTry
    ending: Ending | None = None
    failure_report: FailureReport | None = None
    diagnosis: Diagnosis | None = None
    doubt: str = ""


def supervise_command(run: RunFolder, command: Command, view: CommandView) -> Outcome:
    """Bring the command to an end."""
    supervisor = CommandSupervisor(run, command, view)
    pause_s = 0.0
    while True:
        attempt = supervisor.begin(pause_s)
        if attempt is None:
            return Outcome(NextTry("stopped", "stopped on request"))
        ending = supervisor.watch(attempt)
        failure_report, diagnosis = supervisor.collect(attempt, ending)
        move = supervisor.decide(attempt, failure_report, diagnosis)
        supervisor.record(failure_report, diagnosis, move)
        if move.kind != "again":
            return Outcome(move, ending, failure_report, diagnosis, supervisor.states.doubt() if move.kind == "done" else "")
        silent = f": {ending.facts['reason']}" if ending.kind == "hang" and "reason" in ending.facts else ""
        view.tell(f"attempt {attempt.number}: {move.reason}{silent}")
        pause_s = move.pause_s


class CommandSupervisor:
    """What the loop does with one command."""

    def __init__(self, run: RunFolder, command: Command, view: CommandView) -> None:
        self.run, self.command, self.view = run, command, view
        cards: dict[str, LauncherCard] = cards_of("launchers")
        self.card = _without(cards.get(command.launcher or ""), command.unknown_option)
        self.states = States(run, command, self.card, view.tell)
        self.remedies = Remedies(run, command, self.card)
        self.session = uuid.uuid4().hex
        self.seen: Seen | None = None
        self._row = 0.0
        self._hangs = 0

    def begin(self, pause_s: float) -> Attempt | None:
        """The attempt to watch: adopted or started; None where its user wants to stop."""
        attempt = adopt(self.run)
        if attempt is not None:
            if living := living_pids(attempt):
                pids = ", ".join(f"{role} {pid}" for role, pid in living.items())
                self.view.tell(f"adopted the living attempt {attempt.number} ({pids})")
                self.run.event("attempt_adopted", attempt=attempt.number)
            self.view.follow(attempt, bool(living))
            return attempt
        until = time.monotonic() + pause_s
        while time.monotonic() < until and not self.view.wish():
            time.sleep(min(0.1, pause_s))
        if self.view.wish():
            return None
        return self._start()

    def _start(self) -> Attempt:
        found = self.states.to_go_on_from() if self.run.attempts() else None
        # a command that has said that it takes no option begins anew, but for what its callback loads
        state = found if self.command.callback or not self.command.unknown_option else None
        words, told = resumed(self.command.argv, self.card, state.name if state else None), self.remedies.now()
        words, env = told.apply(words)
        environment = environment_of(self.command, state.path if state else None, self.states.snapshot)
        orders = {
            "session": self.session,
            "resumed_from": state.name if state else None,
            "resumed_step": state.step if state else None,
            "added_option": added_by(self.command.argv, self.card) if state else None,
            "stands_at": self.states.stands_at(),
            "remedy": told.name,
            "terminal": _terminal_size(),
        }
        attempt = attempts.start(self.run, words, self.command.folder, environment | env, orders)
        self.run.event("attempt_started", attempt=attempt.number, command=list(words), remedy=told.name)
        if attempt.number > 1:
            name = state.name if state else "the state in memory" if self.states.snapshot.exists() else "the beginning"
            self.run.event("restored", attempt=attempt.number, step=(state.step or 0) if state else 0, state=name)
            self.view.tell(f"attempt {attempt.number}: {self._how(name, found)}")
        self.view.follow(attempt, False)
        cards_of("failures")  # read while the command starts
        return attempt

    def _how(self, name: str, there: State | None) -> str:
        """How an attempt begins, in words, and what would let the next one go on where it cannot."""
        if there and not self.command.callback and resumes_by(self.command.argv, self.card) is None:
            begins = "started from its beginning" if self.command.unknown_option else "started again"
            return f"{begins}; {there.name} is there, and the command takes no option to go on from it (a Trainer does with --callback)"
        if name == "the beginning" and not self.command.callback and self.command.checkpoints is None:
            return f"going on from {name}: where it saves is not known (--checkpoints DIR tells, for a Trainer --callback)"
        return f"going on from {name}"

    def watch(self, attempt: Attempt) -> Ending:
        """Wait until it has ended; it is asked to stop where its user wants that, and ended where it hangs."""
        orders = read_launch_spec(attempt.folder) or LaunchSpec({})
        signs = Signs(self.command, attempt.folder, orders.started or 0.0)
        told = self.command.hang_s != Command.hang_s
        pace = Pace(time.monotonic(), self.command.hang_s, told, patient=2.0**self._hangs)
        self.seen, self._row = None, 0.0

        def tick(seen: Seen) -> int:
            self.seen = seen
            self._note(attempt, seen, signs)
            self.view.tick(seen)
            return self.view.wish()

        ending = attempts.watch(attempt, self.run, self.command, signs, pace, tick)
        self.seen = signs.last()
        self._note(attempt, self.seen, signs, at_once=True)
        self._hangs = self._hangs + 1 if ending.kind == "hang" else 0
        self.command = self.states.learn(attempt)
        self.remedies.settle(attempt, self.states.stands_at())
        return ending

    def _note(self, attempt: Attempt, seen: Seen, signs: Signs, at_once: bool = False) -> None:
        """A row of progress.jsonl where there is a new step; one a second is enough."""
        now = time.time()
        if seen.step is None or not (at_once or (seen.stepped and row_due(now, self._row, signs.since))):
            return
        self._row = now
        pulse = signs.pulse() or {}
        row = {"time": round(now, 3), "attempt": attempt.number, "step": seen.step, "total": seen.total, "source": seen.source}
        append_line(self.run.progress_file, row | {"loss": pulse.get("loss")})
        self.states.reached(seen.step)

    def collect(self, attempt: Attempt, ending: Ending) -> tuple[FailureReport, Diagnosis]:
        """What is known of the attempt: evidence, and the cause by it and by its output."""
        failure_report = collect(attempt, self.run, ending)
        orders = read_launch_spec(attempt.folder) or LaunchSpec({})
        began, step = int(orders.facts.get("resumed_step") or 0), self.seen.step if self.seen else None
        account = read_json(attempt.folder / "account.json") or {}
        flight = last_line(attempt.folder / "samples.jsonl") or {}  # with a step that did not come to its end, or none
        failure_report = replace(failure_report, step=flight.get("step", step), samples=tuple(flight.get("samples") or ()))
        failure_report = replace(failure_report, committed_before=began, committed_after=max(began, step or 0), phase=account.get("phase"))
        if ending.kind == "finished":
            return failure_report, Diagnosis("unknown", 0.0)
        failure_report = replace(failure_report, gpu_memory=gpu_memory(Place()))
        if account.get("cause"):
            reason = str(account.get("reason", ""))
            return failure_report, replace(Diagnosis.plain(str(account["cause"]), 0.95, reason), explanation=reason)
        with (attempt.folder / "output.log").open("rb") as stream:
            found = diagnose_failure(failure_report, cards_of("failures"), read_log(stream))
        if (full := self._full_disk(failure_report)) and ending.kind in ("error", "killed"):
            return failure_report, Diagnosis.plain("disk_full", 0.95, f"{full} is full", *found.words())
        return failure_report, found

    def decide(self, attempt: Attempt, failure_report: FailureReport, diagnosis: Diagnosis) -> NextTry:
        """What follows; a state that is in the callback's memory is made a checkpoint first."""
        ending, stop = failure_report.ending, bool(self.view.wish())
        account = read_json(attempt.folder / "account.json") or {}
        asked = ending.code == 130 or account.get("phase") == "stopped"
        cut_short = self._cut_short(attempt, ending)
        if ending.kind == "finished" and not cut_short:
            self.states.snapshot.unlink(missing_ok=True)
        else:
            self.states.keep(attempt)
        if not stop and (option := self._refused(attempt, failure_report)):
            self._give_up_option(attempt, option)
            return NextTry("again", f"{ending.words()}: it does not know {option}, which was added to it; it is added no more")
        tries = self._history(failure_report, diagnosis, from_outside=ending.from_outside or asked)
        left = ending.facts.get("left") or [] if ending.kind == "finished" else []
        step = self.seen.step if self.seen else None
        if left and step is None and (ending.seconds or 0.0) < _EARLY_S:
            reason = (
                f"the command returned after {ending.seconds or 0:.1f} s and left {left[0]!r} running in the background, which was ended:"
                " holdfast cannot watch over what leaves it; start it in the foreground"
            )
            self.run.event("left_running", names=left)
            return NextTry("give_up", reason)
        told = account if account.get("final") else ending.facts if ending.kind in ("refused", "stuck") else {}
        may_try = self.command.tries and self.remedies.left(diagnosis.cause)
        move = next_try(
            tries,
            ending.code if ending.kind == "finished" else None,
            stop=stop,
            retries=self.command.retries,
            disk_full=self._full_disk(failure_report),
            cut_short=cut_short,
            final=str(told.get("reason") or ""),
            may_try=may_try,
        )
        if move.try_remedy:
            self.remedies.take(diagnosis.cause)
        return move

    def _refused(self, attempt: Attempt, failure_report: FailureReport) -> str:
        """The option to go on that was added and that the command says it does not know; empty where it says no such thing."""
        orders = read_launch_spec(attempt.folder) or LaunchSpec({})
        option = str(orders.facts.get("added_option") or "")
        return option if option and failure_report.ending.kind == "error" and says_unknown(failure_report.lines, option) else ""

    def _give_up_option(self, attempt: Attempt, option: str) -> None:
        """Remember with the run that its command takes no option to go on."""
        self.command = self.states.command = replace(self.command, unknown_option=option)
        self.card = _without(self.card, option)
        write_command(self.run, self.command)
        self.run.event("option_unknown", attempt=attempt.number, option=option)

    def _cut_short(self, attempt: Attempt, ending: Ending) -> str:
        """Why an exit code of 0 was no end of the training, as the callback tells; empty where it was, or nobody knows."""
        pulse = read_json(attempt.folder / "pulse.json") or {}
        if ending.kind != "finished" or not pulse or pulse.get("phase") in ("done", "stopped"):
            return ""
        if pulse.get("steps") and pulse.get("step") == pulse["steps"]:
            return ""
        return f"ended with exit code 0 in the middle of training, after step {pulse.get('step')} of {pulse.get('steps')}"

    def _full_disk(self, failure_report: FailureReport) -> str:
        """The disk that takes no more; empty where each does."""
        if failure_report.disk_is_full:
            return f"the disk of {self.run.path}"
        place = self.command.place
        if place is not None and place.is_dir() and os.access(place, os.W_OK) and free_bytes(place) < FULL_DISK_BYTES:
            return f"the disk of {place}"
        return ""

    def _history(self, failure_report: FailureReport, diagnosis: Diagnosis, from_outside: bool) -> list[Try]:
        """The ended attempts since the run was last given up or stopped, this one last."""
        found: list[tuple[LaunchSpec, str, str, bool, str]] = []
        ours = {event["attempt"] for event in self.run.events() if event["event"] == "option_unknown"}  # our doing, nobody else's
        for number, end in closed_attempts(self.run):
            if not end.goes_on:
                found.clear()
                continue
            if number in ours:
                continue
            orders = read_launch_spec(self.run.attempt(number)) or LaunchSpec({})
            found.append((orders, end.cause, end.ending.words(), end.ending.from_outside, str(orders.facts.get("remedy") or "")))
        orders = read_launch_spec(self.run.attempt(failure_report.attempt)) or LaunchSpec({})
        found.append((orders, diagnosis.cause, failure_report.ending.words(), from_outside, str(orders.facts.get("remedy") or "")))
        stood = [int(orders.facts.get("stands_at") or 0) for orders, *_ in found] + [self.states.stands_at()]
        return [
            Try(cause, words, stood[at + 1] > stood[at], outside, remedy) for at, (_, cause, words, outside, remedy) in enumerate(found)
        ]

    def record(self, failure_report: FailureReport, diagnosis: Diagnosis, move: NextTry) -> None:
        """Write down what happened and what follows, before anything acts on it."""
        if move.kind == "again":
            told: Move | Stop = Resume(move.reason, remedy=self.remedies.now().name or "resume")
        elif move.kind == "give_up":
            told = GiveUp(move.reason)
        else:
            told = Stop()
        record(self.run, failure_report, diagnosis, told, None)


def _without(card: LauncherCard | None, option: str) -> LauncherCard | None:
    """The card of a command that does not know its option to go on."""
    return card.model_copy(update={"resume": ()}) if card is not None and option else card


def row_due(now: float, last: float, began: float) -> bool:
    """Whether it is time for another row: one a second, more of them in a short run. A clock that was put back makes none wait for it."""
    return not 0 <= now - last < min(_ROW_EVERY_S, (now - began) / 100)


def _terminal_size() -> list[int] | None:
    """Lines and columns of our terminal; None where output goes elsewhere."""
    if not os.isatty(1):
        return None
    try:
        size = os.get_terminal_size(1)
    except OSError:
        return None
    return [size.lines or 24, size.columns or 80]
