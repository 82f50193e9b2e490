"""What is told and written down of a command while it runs: its steps, that it went to the background, an expression that is too slow."""

from __future__ import annotations

import time
from collections.abc import Callable

from holdfast.base.files import Json, read_json
from holdfast.machine import clock
from holdfast.processes.attempt import Attempt
from holdfast.run.command import Command
from holdfast.run.folder import RunFolder
from holdfast.supervision.command import attempts
from holdfast.supervision.command.signs import ProgressSigns, Signs, steps_believed
from holdfast.supervision.command.states import States

WITHOUT_CALLBACK = (
    "makes no Trainer of transformers', so it is watched without: its steps are those it prints, and it goes on from its own saves"
)
_ROW_EVERY_S = 1.0
_IDLE_S = {True: 10.0, False: 60.0}  # of what is followed in the background, by whether a step was seen before the command returned


class ToldOfRunning:
    """Of one command's run, over all of its attempts."""

    def __init__(self, run: RunFolder, command: Command, states: States, tell: Callable[[str], None]) -> None:
        self.run, self.command, self.states, self.tell = run, command, states, tell
        self.without_callback = False  # whether steps were seen of a command that was to have it, and it had not
        self._said_without = self._slow_pattern = False
        self._row = self._stepped = 0.0  # when the last row was written, and when its step was first seen
        self._followed = 0
        self._alive = self._patience_s = 0.0  # when what is followed in the background stepped or computed last, and how long it need not

    def begin(self) -> None:
        """Begin with an attempt: no row of it is written yet."""
        self._row = self._stepped = 0.0

    def tell_slow_pattern(self, signs: Signs) -> None:
        """Say once that the user's expression for steps is not used any more."""
        if signs.too_slow and not self._slow_pattern:
            self._slow_pattern = True
            self.run.event("progress_pattern_slow", pattern=self.command.progress)
            text = f"--progress {self.command.progress!r} took too long on what the command printed: it is not used in this attempt"
            self.tell(f"{text}; steps are looked for as without --progress (a repetition inside of a repetition is what takes long)")

    def tell_without_callback(self, attempt: Attempt, seen: ProgressSigns) -> None:
        """Say once that the callback was to be put into the command, and was not at work in an attempt that has shown steps."""
        at_work = (attempt.folder / "pulse.json").exists()
        if not self.command.callback or not (at_work or seen.step) or self.without_callback is not at_work:
            return
        self.without_callback = not at_work
        if not at_work and not self._said_without:
            self._said_without = True
            self.tell(f"--callback was not at work in attempt {attempt.number}: the command {WITHOUT_CALLBACK}")

    def tell_followed(self, attempt: Attempt, seen: ProgressSigns) -> None:
        """Say once of an attempt that its command returned, and what of it goes on.

        What goes on behind the last step is no training, nor what prints for a while and neither steps nor computes.
        """
        if not (name := attempts.followed(attempt)):
            return
        if attempt.number != self._followed:
            self._followed, self._alive, self._patience_s = attempt.number, time.monotonic(), _IDLE_S[seen.step is not None]
            if seen.step is not None and seen.total is not None and seen.step >= seen.total:
                attempts.leave_followed(attempt)
            else:
                self.tell(f"the command returned and left {name!r} running in the background: it is followed to its end")
        if seen.stepped or seen.worked:
            self._alive = time.monotonic()
        elif time.monotonic() - self._alive > self._patience_s:
            attempts.leave_followed(attempt)

    def note(self, attempt: Attempt, seen: ProgressSigns, signs: Signs, at_once: bool = False) -> None:
        """Write a row to progress.jsonl where there is a new step, at most one a second. Its time is when that step was first seen."""
        now = clock.now()
        self._stepped = now if seen.stepped else self._stepped
        if seen.step is None or not (at_once or (seen.stepped and row_due(now, self._row, signs.since))):
            return
        if not self._row and seen.source == "output":
            self._recount(attempt, seen.total)
        self._row = now
        pulse = (signs.pulse() or {}) if seen.source == "callback" else {}
        row: Json = {
            "time": round(self._stepped or now, 3),
            "attempt": attempt.number,
            "step": seen.step,
            "total": seen.total,
            "source": seen.source,
        }
        row |= {"loss": pulse.get("loss"), "first": seen.first, "wrote": list(seen.wrote) if seen.wrote else None}
        row |= ({"stages": True} if seen.has_stages else {}) | ({"from_zero": True} if seen.from_zero else {})
        self.run.append(self.run.progress_file, row, durable=not self.states.has_stepped)  # the first says whose checkpoints are there
        self.states.reached(seen.step)

    def _recount(self, newest: Attempt, total: int | None) -> None:
        """Write a row for each earlier attempt that ended before its numbers were believed: this one has shown that they count steps."""
        told = {row["attempt"] for row in self.run.progress()}
        for number in sorted(set(range(1, newest.number)) - told):
            if found := steps_believed(self.run.attempt(number), total):
                at = (read_json(self.run.attempt(number) / "ending.json") or {}).get("ended") or clock.now()
                row: Json = {"time": round(at, 3), "attempt": number, "step": found.step, "total": total, "source": "output"}
                self.run.append(self.run.progress_file, row | {"loss": None, "first": found.first, "wrote": None}, durable=False)


def row_due(now: float, last: float, began: float) -> bool:
    """True if another row is due: one a second, more in a short run. A clock that was put back delays none."""
    return not 0 <= now - last < min(_ROW_EVERY_S, (now - began) / 100)
