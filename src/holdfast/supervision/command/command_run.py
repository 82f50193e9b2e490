"""A run of somebody else's command, for the loop that supervises it: its signs of life, its checkpoints, what may be changed in it.

What a foreign program does not give is missing: no step that could be run again, no timeline, no lab.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from dataclasses import replace

from holdfast.base.errors import INTERRUPTED
from holdfast.base.files import Json, may_pass, write_json
from holdfast.base.inert import brief
from holdfast.book import cards_of
from holdfast.book.kinds.launcher import LauncherCard
from holdfast.diagnosis.diagnose import ASKED_TO_END
from holdfast.processes.attempt import Attempt
from holdfast.processes.hang_timeout import FIRST_S, HangTimeout
from holdfast.processes.pauses import Pauses
from holdfast.processes.process import LOOK_EVERY_S, adopt, living_pids
from holdfast.report.words import short
from holdfast.run.attempt import LaunchSpec, read_launch_spec
from holdfast.run.command import Command, write_command
from holdfast.run.folder import RunFolder
from holdfast.run.types import Ending, FailureReport, Verdict
from holdfast.supervision.command import attempts
from holdfast.supervision.command.good_end import cut_short, of_what_fell
from holdfast.supervision.command.outlived import FolderGone, KeptAttempts, is_gone, outlive
from holdfast.supervision.command.read_of_end import ReadOfEnd
from holdfast.supervision.command.remedies import Remedies
from holdfast.supervision.command.saved import nothing_saved, rerun
from holdfast.supervision.command.signs import ProgressSigns, Signs
from holdfast.supervision.command.standby import CommandStandby
from holdfast.supervision.command.states import ResumePoint, States
from holdfast.supervision.command.told_of_running import ToldOfRunning
from holdfast.supervision.foreign_checkpoints.newest import rows_twice
from holdfast.supervision.policy.ledgers import OF_COMMAND
from holdfast.supervision.policy.moves import Done, Move, Resume, StopRequested, TryRemedy
from holdfast.supervision.policy.next_move import FINAL_KINDS, Known
from holdfast.supervision.policy.resuming import added_by, refused_arguments, resumed, resumes_by, says_unknown
from holdfast.supervision.supervise import RunResult, View, supervise

_PAUSES_S = (0.5, 10.0)  # between starts that come to nothing
_LONGEST_PAUSE_S = 5.0  # before what failed is tried again: each time it fails at once, the pause is twice as long
_OF_ARGPARSE = 2  # exit code of a command line that it refuses
_LONGEST_TIMES = 3  # its longest pause so far may have been an evaluation


class CommandRun:
    """One command's run."""

    def __init__(self, run: RunFolder, command: Command, view: View[ProgressSigns]) -> None:
        self.run, self.command, self.view = run, command, view
        self.pauses = Pauses(run, view.tell, between=_PAUSES_S)
        cards: dict[str, LauncherCard] = cards_of("launchers")
        self.card = _without(cards.get(command.launcher or ""), command.unknown_option)
        self.states = States(run, command, self.card, view.tell)
        self.told = ToldOfRunning(run, command, self.states, view.tell)
        self.remedies = Remedies(run, command, self.card)
        self.standby = CommandStandby(run)
        self.kept = KeptAttempts(run)
        self.session = uuid.uuid4().hex
        self.attempt: Attempt | None = None  # the newest that was started or watched here
        self.seen: ProgressSigns | None = None
        self.after: Json | None = None  # how the command ended behind its last step, where that was no good end
        self.left = ""  # what a command that ended well left running, in words
        self._hangs = 0

    def adopt(self) -> Attempt | None:
        found = adopt(self.run)
        return self.attempt if found and self.attempt and found.number == self.attempt.number else found

    def to_its_end(self) -> RunResult:
        """Supervise it. What fails and may pass does not end that: the command lives on, and is adopted. Raises OSError for the rest."""
        pause, failed = LOOK_EVERY_S, 0.0
        while True:
            try:
                return supervise(self)
            except OSError as error:
                now = time.monotonic()
                pause = LOOK_EVERY_S if now - failed > 2 * _LONGEST_PAUSE_S else 2 * pause
                if not may_pass(error) or pause > _LONGEST_PAUSE_S or not self._lives():
                    raise
                failed = now
            time.sleep(pause)

    def end(self) -> None:
        """Ask the command to stop, kill it where it does not, and wait for that: nobody will watch it any more."""
        if self.attempt is None or not self._lives():
            return
        self.view.tell("the command cannot be watched over any more: it is ended")
        with contextlib.suppress(OSError):
            outlive(self.attempt, living_pids(self.attempt) if self.attempt.shim is None else {}, lambda: 1, self.command.stop_s)

    def left_running(self) -> str:
        """Say that the command goes on without us, and how it is taken up again; empty where none lives. Nothing of it raises."""
        with contextlib.suppress(Exception):  # what failed may fail here
            attempt, until = self.attempt or adopt(self.run), time.monotonic() + _LONGEST_PAUSE_S
            while attempt is not None and self._lives() and "trainer" not in living_pids(attempt) and time.monotonic() < until:
                time.sleep(LOOK_EVERY_S)  # its shim has yet to start it
            living = living_pids(attempt) if attempt is not None else {}
            if living:
                pids = ", ".join(f"{role} {pid}" for role, pid in living.items())
                return f"your command goes on, unwatched ({pids}): the same holdfast run command adopts it"
        return ""

    def _lives(self) -> bool:
        if self.attempt is None:
            return False
        if self.attempt.shim is not None:
            return self.attempt.shim.poll() is None
        try:
            return bool(living_pids(self.attempt))
        except OSError:
            return True

    def living(self, attempt: Attempt) -> dict[str, int]:
        return living_pids(attempt)

    def start(self) -> Attempt | None:
        if self.view.stopping():
            return None
        self.states.claim()
        self.states.keep_what_stayed()
        found = self.states.to_go_on_from() if self.run.attempts() else None
        state = found if self.command.callback or resumes_by(self.command.argv, self.card) is not None else None  # else nothing tells it
        words, told = resumed(self.command.argv, self.card, state.name if state else None), self.remedies.now()
        words, env = told.apply(words)
        later = self.states.of_later_trainings() if self.run.attempts() else []
        environment = attempts.environment_of(self.told.command, [*([state.path] if state else []), *later], self.states.snapshot)
        orders = {
            "session": self.session,
            "resumed_from": state.name if state else None,
            "resumed_step": state.step if state else None,
            "resumed_later": bool(later),
            "added_option": added_by(self.command.argv, self.card) if state else None,
            "stands_at": self.states.stands_at(),
            "remedy": told.name,
            "terminal": _terminal_size(),
            "stdin": [str(self.run.path / self.command.stdin), self.command.stdin_at] if self.command.stdin else None,
        }
        self.attempt = attempt = attempts.start(self.run, words, self.command.folder, environment | env, orders, self.standby, self.kept)
        self.run.event("attempt_started", attempt=attempt.number, command=list(words), remedy=told.name, stood_by=attempt.stood_by)
        if attempt.number > 1:
            name = state.name if state else "the state in memory" if self.states.snapshot.exists() else "the beginning"
            self.run.event("restored", attempt=attempt.number, step=(state.step or 0) if state else 0, state=name)
            more = "".join(f"; its training into {short(path.parent)} from {path.name}" for path in later)
            self.view.tell(f"attempt {attempt.number}: {self._how(name, found)}{more}")
            if state and (twice := rows_twice(state.path)):
                self.run.event("rows_twice", attempt=attempt.number, state=name, reason=twice)
                self.view.tell(f"attempt {attempt.number}: {twice}")
        cards_of("failures")  # read while the command starts
        return attempt

    def _how(self, name: str, there: ResumePoint | None) -> str:
        """Describe how an attempt begins and, where it cannot go on from a checkpoint, what would let the next one do so."""
        if there and not self.command.callback and resumes_by(self.command.argv, self.card) is None:
            begins = "started from its beginning" if self.command.unknown_option else "started again"
            in_vain = self.told.without_callback or (self.card is not None and not self.card.callback)
            would = "" if in_vain else " (a Trainer does with --callback)"
            return f"{begins}; {there.name} is there, and the command takes no option to go on from it{would}"
        if name == "the beginning" and self.states.trains_again():
            return "started from its beginning: it trains more than once into one folder, and whose a checkpoint there is, is not known"
        if name == "the beginning" and (lost := nothing_saved(self.run, self.command)):
            return f"started from its beginning: {lost}"
        if name == "the beginning" and not self.command.callback:
            place = self.command.place
            lacks = "where it saves is not known" if place is None else f"no file in {short(place)} is a checkpoint of a form that is known"
            return f"started again: {lacks}" + (" (--checkpoints DIR tells, for a Trainer --callback)" if place is None else "")
        return f"going on from {name}"

    def watch(self, attempt: Attempt) -> Ending:
        """Wait until it has ended; it is asked to stop where its user wants that, and ended where it hangs."""
        self.attempt = attempt
        orders = read_launch_spec(attempt.folder) or LaunchSpec({})
        signs = Signs(self.command, attempt.folder, orders.started or 0.0)
        first_s = 0.0 if self.command.hang_s != Command.hang_s else FIRST_S  # its user's own word counts from the start
        timeout = HangTimeout(self.command.hang_s, first_s, _LONGEST_TIMES, longer=2.0**self._hangs)
        self.seen = None
        self.told.begin()
        self.kept.read()

        def tick(seen: ProgressSigns) -> int:
            self.seen = seen
            self.told.tell_slow_pattern(signs)
            self.told.tell_followed(attempt, seen)
            self.told.note(attempt, seen, signs)
            if seen.stepped and seen.source == "callback":
                self.states.await_death(attempt)
            self.standby.consider(attempt, self.command, seen)
            self.view.tick(seen)
            return self.view.stop()

        living = living_pids(attempt)
        try:
            ending = attempts.watch(attempt, self.run, self.command, signs, timeout, tick)
        except FileNotFoundError:
            if not is_gone(attempt.folder):
                raise
            ending = self._outlive(attempt, living)
        self.kept.put_back()
        self.seen = signs.last(ending.kind == "finished")
        ending = of_what_fell(ending, self.seen)
        self.told.note(attempt, self.seen, signs, at_once=True)
        self._hangs = self._hangs + 1 if ending.kind == "hang" else 0
        self.told.tell_without_callback(attempt, self.seen)
        self.command = self.states.learn(attempt, self.told.command.callback and not self.told.without_callback)
        self.remedies.settle(attempt, self.states.stands_at())
        return ending

    def _outlive(self, attempt: Attempt, living: dict[str, int]) -> Ending:
        """Wait for the end of a command whose attempt was removed. Raises FolderGone where all of the run was."""
        place = attempt.folder if self.run.path.is_dir() else self.run.path
        self.view.tell(f"{place} was removed while the command was running: the command goes on, and no step of it is seen any more")
        code = outlive(attempt, living, self.view.stop, self.command.stop_s)
        if not self.run.command_file.exists():
            raise FolderGone(code)
        self.run.made(attempt.folder)
        seen: Json = {} if code is None else {"code": code}
        write_json(attempt.folder / "ending.json", seen)
        return attempts.ending_of(seen, {"left": [], "left_printed": False})

    def is_over(self, ending: Ending) -> bool:
        return False  # a good end is collected, too: it may be none

    def collect(self, attempt: Attempt, ending: Ending, earlier: bool) -> Known:
        """Return all that is known of the attempt. A state held in the callback's memory is first made a checkpoint."""
        end = ReadOfEnd(self.run, self.command, self.card, self.states, self.seen, attempt, ending)
        account, failure_report = end.account, end.wreck()
        diagnosis, full = end.diagnosis(failure_report), end.full_disk(failure_report)
        asked = ending.code == INTERRUPTED or account.get("phase") == "stopped"
        no_end, background = cut_short(attempt, ending), end.in_background()
        self.left = end.left or self.left
        self.after = None if asked else end.after_training(diagnosis, failure_report.lines)
        over = (ending.kind == "finished" and not no_end and not background) or self.after is not None
        if over:
            self.states.snapshot.unlink(missing_ok=True)
        else:
            self.states.keep(attempt)
        found = account if account.get("final") else ending.facts if ending.kind in FINAL_KINDS else {}
        final = background or str(found.get("reason") or "")
        if not final and ending.kind == "error" and ending.code == _OF_ARGPARSE and failure_report.step is None:
            refused = refused_arguments(failure_report.lines)
            final = f"the command does not take its arguments ({brief(refused)}): its --help shows which there are" if refused else ""
        if full and not final:
            final = f"{ending.words()}; {full} is full: make room, then {rerun(nothing_saved(self.run, self.command), self.command)}"
        others = diagnosis.cause == "unknown" and diagnosis.cards == ASKED_TO_END
        told = no_end or ending.words()
        told += (" from outside" if ending.by_signal is not None else " after a signal from outside") if others else ""
        told += f" ({diagnosis.cause})" if diagnosis.cause != "unknown" else ""
        return Known(
            failure_report,
            diagnosis,
            end.history(failure_report, diagnosis, ending.from_outside or asked),
            rules=replace(OF_COMMAND, retries=self.command.retries),
            over=over,
            final=final,
            told=told,
            remedy_left=self.command.tries and self.remedies.left(diagnosis.cause),
            earlier=earlier,
        )

    def try_out(self, known: Known) -> Verdict | None:
        return None  # a step of it cannot be run again

    def choose(self, known: Known, move: Move | StopRequested | Done) -> Move | StopRequested | Done:
        """Choose the remedy. An option that the command does not know is given up first, whatever else is known.

        A command that came to its last step and ended well was not stopped, though that was asked for at the time.
        """
        if not isinstance(move, Move):
            well = known.over and known.failure_report.ending.kind == "finished"
            return Done() if well and self.seen and 0 < (self.seen.total or 0) <= (self.seen.step or 0) else move
        if option := self._refused(known.failure_report):
            self._give_up_option(known.failure_report.attempt, option)
            return self._resumed(
                f"{known.failure_report.ending.words()}: it does not know {option}, which was added to it; it is added no more"
            )
        if isinstance(move, TryRemedy):
            self.remedies.take(known.diagnosis.cause)
        return self._resumed(move.reason) if isinstance(move, Resume) else move

    def _resumed(self, reason: str) -> Resume:
        return Resume(reason, remedy=self.remedies.now().name or "resume")

    def apply(self, known: Known, move: Move | StopRequested | Done) -> None:
        if isinstance(move, Resume):
            ending = known.failure_report.ending
            silent = f": {ending.facts['reason']}" if ending.kind == "hang" and "reason" in ending.facts else ""
            self.view.tell(brief(f"attempt {known.failure_report.attempt}: {move.reason}{silent}"))
            another = bool(self._refused(known.failure_report))  # without that option it is another start
            lived = (ending.seconds or 0.0) > _PAUSES_S[1]  # longer than any pause between two starts
            self.pauses.after(progressed=another or lived or known.history[-1].progressed)

    def _refused(self, failure_report: FailureReport) -> str:
        """Return the added resume option that the command reports as unknown; empty where it reports none."""
        orders = read_launch_spec(self.run.attempt(failure_report.attempt)) or LaunchSpec({})
        option = str(orders.facts.get("added_option") or "")
        return option if option and failure_report.ending.kind == "error" and says_unknown(failure_report.lines, option) else ""

    def _give_up_option(self, attempt: int, option: str) -> None:
        """Remember with the run that its command takes no option to go on."""
        self.command = self.states.command = replace(self.command, unknown_option=option)
        self.card = _without(self.card, option)
        write_command(self.run, self.command)
        self.run.event("option_unknown", attempt=attempt, option=option)


def _without(card: LauncherCard | None, option: str) -> LauncherCard | None:
    """Return the card without its way to resume where the command does not know this `option`, else as it is."""
    return card.model_copy(update={"resume": ()}) if card is not None and option else card


def _terminal_size() -> list[int] | None:
    """Return the lines and columns of our terminal; None where output goes elsewhere."""
    if not os.isatty(1):
        return None
    try:
        size = os.get_terminal_size(1)
    except OSError:
        return None
    return [size.lines or 24, size.columns or 80]
