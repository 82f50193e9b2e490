"""The loop above a run: start or adopt, watch, collect the end, decide, record, apply; until the run is over. Touches no torch.

Its two users are our own trainer (training/trainer_run.py) and somebody else's command (command/command_run.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from holdfast.processes.attempt import Attempt
from holdfast.processes.pauses import Pauses
from holdfast.run.folder import RunFolder
from holdfast.run.types import Diagnosis, Ending, FailureReport, Verdict
from holdfast.supervision.policy.moves import Accept, Done, GiveUp, Move, StopRequested
from holdfast.supervision.policy.next_move import Known, next_move
from holdfast.supervision.records import record

T = TypeVar("T", contravariant=True)


@dataclass(frozen=True)
class View(Generic[T]):
    """What the supervisor tells its audience. `stop` is asked all the while: 0 go on, 1 (or True) the user wants to stop, 2 at once.

    tick: is called while an attempt lives, with what is seen of it; follow: an attempt is watched from now on, perhaps an adopted one.
    """

    tick: Callable[[T], None]
    tell: Callable[[str], None]
    stop: Callable[[], int]
    follow: Callable[[Attempt, bool], None] = lambda *_: None

    def stopping(self) -> bool:
        """True if the user wants to stop."""
        return self.stop() > 0


class SupervisedRun(Protocol):
    """A run that is brought to its end: what differs between whose trainer it is."""

    run: RunFolder
    view: View[Any]
    pauses: Pauses

    def adopt(self) -> Attempt | None:
        """Return the newest attempt whose end was not dealt with yet, dead or alive."""

    def living(self, attempt: Attempt) -> dict[str, int]:
        """Return the pids of an attempt's living processes, by role."""

    def start(self) -> Attempt | None:
        """Start an attempt; None where its user wants to stop."""

    def watch(self, attempt: Attempt) -> Ending:
        """Wait until it has ended; it is asked to stop where that is wanted, and ended where it hangs."""

    def is_over(self, ending: Ending) -> bool:
        """True if the run is at its end and nothing is left to be collected."""

    def collect(self, attempt: Attempt, ending: Ending, earlier: bool) -> Known:
        """Return all that is known of the attempt and the run, before anything is tried. earlier: it was dead when found."""

    def try_out(self, known: Known) -> Verdict | None:
        """Return what experiments find out, where they are worth it; None where nothing was tried."""

    def choose(self, known: Known, move: Move | StopRequested | Done) -> Move | StopRequested | Done:
        """Return the move with what only this user knows: which remedy it is."""

    def apply(self, known: Known, move: Move | StopRequested | Done) -> None:
        """Carry the move out, all but the start of the next attempt."""


@dataclass(frozen=True)
class RunResult:
    """How a supervised run ended: done; stopped by the user (no move); or given up, with the move that says why."""

    ending: Ending
    move: Move | None = None
    failure_report: FailureReport | None = None
    diagnosis: Diagnosis | None = None
    done: bool = False


def supervise(user: SupervisedRun) -> RunResult:
    """Bring the run to an end."""
    while True:
        attempt, earlier = _begin(user)
        if attempt is None:
            return RunResult(Ending("interrupted"))
        ending = user.watch(attempt)
        if user.is_over(ending):
            return RunResult(ending, done=True)
        known = user.collect(attempt, ending, earlier)
        verdict = user.try_out(known)
        move = user.choose(known, next_move(known, verdict, user.view.stopping()))
        found = verdict.cause if verdict and isinstance(move, Move) else None
        record(user.run, known.failure_report, replace(known.diagnosis, cause=found or known.diagnosis.cause), move, verdict)
        user.apply(known, move)
        if isinstance(move, Done) or (isinstance(move, StopRequested) and not move.earlier):
            return RunResult(ending, None, known.failure_report, known.diagnosis, done=isinstance(move, Done))
        if isinstance(move, GiveUp) or (isinstance(move, Accept) and ending.kind == "finished"):
            return RunResult(ending, move, known.failure_report, known.diagnosis)


def _begin(user: SupervisedRun) -> tuple[Attempt | None, bool]:
    """Return the attempt to watch (adopted or started, None where the user wants to stop), and whether it was dead when found."""
    attempt = user.adopt()
    if attempt is None:
        user.pauses.wait(user.view.stopping)
        started = user.start()
        if started is not None:
            user.view.follow(started, False)
        return started, False
    living = user.living(attempt)
    if living:
        pids = ", ".join(f"{role} in process {pid}" for role, pid in living.items())
        user.view.tell(f"adopted the living attempt {attempt.number} ({pids})")
        user.run.event("attempt_adopted", attempt=attempt.number)
    user.view.follow(attempt, bool(living))
    return attempt, not living
