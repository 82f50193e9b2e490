"""What the ended attempts of a run have in common: how often the same, for how long without a new step. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.base.files import Json
from holdfast.run.remedies import WATCHED


@dataclass(frozen=True)
class PastAttempt:
    """One dead attempt in short: the step it died in (None: before its first, or unknown), its cause and end, what it was started with.

    launch: a trainer's settings (None: they cannot be read any more), or the remedy a command was given; equal where nothing was changed.
    """

    step: int | None
    cause: str
    kind: str
    launch: object
    progressed: bool  # it committed a step, or came further than any before it
    remedied: bool = False  # something was changed after it
    by_chance: bool = False  # the lab saw its step go through as it is
    from_outside: bool = False  # somebody else ended it
    investigated: bool = False  # the lab has looked into its step after it


@dataclass(frozen=True)
class RetryRules:
    """After how many attempts in a row without a new step a run is given up, and how that is said.

    same: that ended alike, which is the program's own doing; from_outside: that somebody else ended, often; by_chance: where the lab
    saw the step go through as it is: another start is another chance; barren: whatever their causes; retries: restarts at all.
    The sentences may name {count}, and of the newest end {ended}, {where} and {told}.
    """

    same: int
    alike: str
    changing: str
    again: str
    retries: int | None = None
    from_outside: int = 8
    by_chance: int = 8
    barren: int = 20

    def most_alike(self, history: list[PastAttempt]) -> int:
        """Return how many attempts like the newest may come to nothing."""
        limit = self.from_outside if history[-1].from_outside else self.same
        alike = repeats(history)
        chance = alike and any(past.by_chance for past in history[-alike:])
        return max(limit, self.by_chance) if chance else limit


OF_TRAINER = RetryRules(
    same=3,
    alike="{count} attempts in a row {ended} {where} without a new step",
    changing="{count} attempts in a row committed no new step, for changing reasons",
    again="{ended} {where}; restarting from the newest state",
)
OF_COMMAND = RetryRules(
    same=2,
    alike="{told}: {count} attempts in a row ended so without progress",
    changing="{told}; {count} attempts in a row made no progress, for changing reasons",
    again="{told}",
)


def repeats(history: list[PastAttempt]) -> int:
    """Count the attempts in a row that ended as the newest one did, under the same launch, without a new step between them."""
    return _unchanged(history, lambda past: not past.progressed and _key(past) == _key(history[-1]))


def without_progress(history: list[PastAttempt]) -> int:
    """Count the attempts in a row without a newly committed step, whatever the cause."""
    return _trailing(history, lambda past: not past.progressed)


def deaths_in_step(history: list[PastAttempt]) -> int:
    """Count the attempts in a row that ended in the newest one's step with nothing changed between; deaths at the start are passed over.

    By the step alone: the row of the step before may be committed only by the next attempt, from the snapshot, and look like progress.
    """
    return _unchanged(in_step(history), lambda past: past.step == history[-1].step)


def in_step(history: list[PastAttempt]) -> list[PastAttempt]:
    """Return the history without the deaths before a first step."""
    return [past for past in history if past.step is not None]


def barren_rollbacks(rollbacks: list[Json]) -> int:
    """Count the rollbacks, last in a list of {from, to}, that did not bring the run beyond where the one before them began."""
    count = 0
    furthest = 0
    for entry in rollbacks:
        count = count + 1 if count and entry["from"] <= furthest + WATCHED else 1
        furthest = max(furthest, entry["from"])
    return count


def _key(past: PastAttempt) -> tuple[object, ...]:
    return past.cause, past.kind, past.from_outside, past.launch


def _unchanged(history: list[PastAttempt], holds: Callable[[PastAttempt], bool]) -> int:
    """Count like `_trailing`, back to the last change: a remedy starts the count anew."""
    since = next((at for at in range(len(history) - 1, 0, -1) if history[at - 1].remedied), 0)
    return _trailing(history[since:], holds)


def _trailing(history: list[PastAttempt], holds: Callable[[PastAttempt], bool]) -> int:
    count = 0
    for past in reversed(history):
        if not holds(past):
            break
        count += 1
    return count
