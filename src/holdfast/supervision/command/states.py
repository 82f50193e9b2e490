"""The states a command can go on from: its checkpoints, and what its callback kept in memory."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.base.disk import has_room
from holdfast.base.files import Json, read_json, read_python_json, read_sound_lines
from holdfast.book.kinds.launcher import LauncherCard
from holdfast.machine import clock
from holdfast.machine.host_memory import host_memory
from holdfast.processes.attempt import Attempt
from holdfast.report.words import short
from holdfast.run.attempt import LaunchSpec, read_launch_spec
from holdfast.run.command import Command, write_command
from holdfast.run.folder import RunFolder
from holdfast.supervision.command.signs import ProgressSigns
from holdfast.supervision.foreign_checkpoints.kept import make_checkpoint, snapshot_of, start_helper
from holdfast.supervision.foreign_checkpoints.newest import (
    NewestCheckpoint,
    candidates,
    changed,
    doubt,
    form_of,
    is_whole,
    marks,
    newest_whole,
    one_too_many,
)

_SHARED = ".saved-to-by-two-runs"  # made in a folder of checkpoints by the run that came second, for the first to know
_ROOM_TO_WAIT = 4 << 30  # bytes of available memory; a helper that waits has imported torch, some 250 MB


def _is_full(place: Path) -> bool:
    try:
        return not has_room(place)
    except OSError:
        return False


@dataclass(frozen=True)
class ResumePoint:
    """A checkpoint as the command is to be told of it; step: None where its name tells none."""

    name: str
    step: int | None
    path: Path


class States:
    """What there is of one command's run."""

    def __init__(self, run: RunFolder, command: Command, card: LauncherCard | None, tell: Callable[[str], None]) -> None:
        self.run, self.command, self.tell = run, command, tell
        self.card, self.whole = card, form_of(command, card)
        self.snapshot = snapshot_of(run)
        self._helper: subprocess.Popen[str] | None = None
        self._lock: int | None = None  # a descriptor of the folder of checkpoints
        self._best = max((int(row.get("step") or 0) for row in run.progress()), default=0)

    @property
    def has_stepped(self) -> bool:
        """Whether any step was seen: the checkpoints there are of this run then."""
        return self._best > 0

    def reached(self, step: int) -> None:
        """Note that a step was seen."""
        self._best = max(self._best, step)
        self.claim()

    def claim(self) -> None:
        """Lock the folder of checkpoints, once it is there; say so where another run that goes on saves there too."""
        if self._lock is not None or self.command.place is None:
            return
        with contextlib.suppress(OSError):  # not there yet, or on a share without locks
            self._lock = os.open(self.command.place, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.run.event("checkpoints_shared", place=str(self.command.place))
                (self.command.place / _SHARED).touch()
                theirs = "each may write over the other's checkpoints, and go on from them; give each command its own folder"
                self.tell(f"another holdfast run saves to {short(self.command.place)} at this moment: {theirs}")

    def note_sharing(self) -> None:
        """Note that another run came to save where this one does, as that one has left word."""
        place, began = self.command.place, read_launch_spec(self.run.attempt(1))
        known = any(event["event"] == "checkpoints_shared" for event in self.run.events())
        if place is None or began is None or not began.started or known:
            return
        with contextlib.suppress(OSError):
            if (place / _SHARED).stat().st_mtime >= clock.in_calendar(began.started):
                self.run.event("checkpoints_shared", place=str(place))

    def stands_at(self) -> int:
        """Return how far the run has come for good: its newest checkpoint, or the furthest step seen where none is known of."""
        place = self.command.place
        if place is None or not place.is_dir():
            return self._best
        own = [step for step, entry in candidates(place, self.whole) if step is not None and entry.name not in self.command.there]
        return max(own, default=0 if self.whole == "trainer" else self._best)

    def _pulses(self) -> list[Json]:
        """Return the newest pulse of each attempt that had the callback."""
        return [pulse for number in self.run.attempts() if (pulse := read_json(self.run.attempt(number) / "pulse.json"))]

    def trains_again(self) -> bool:
        """True if its callback saw a process train more than once into one folder: whose a checkpoint there is, is not known."""
        return any(pulse.get("trainings", 1) > 1 for pulse in self._pulses())

    def of_later_trainings(self) -> list[Path]:
        """Return the newest whole checkpoint of this run in each folder that a later training of its process saves to."""
        places = dict.fromkeys(place for pulse in self._pulses() for place in pulse.get("places", ())[1:])
        found = [] if self.trains_again() else [self._own(Path(place)).path for place in places]
        return [path for path in found if path is not None]

    def _own(self, place: Path) -> NewestCheckpoint:
        """Return the newest whole checkpoint of a later training that was written since the first start."""
        began = (read_launch_spec(self.run.attempt(1)) or LaunchSpec({})).started or 0.0
        return self._whole_but(place, {name: at for name, at in marks(place, "trainer").items() if at < began * 1e9})

    def to_go_on_from(self) -> ResumePoint | None:
        """Return the newest whole checkpoint. Those that are not whole are set aside, with an event."""
        state = self._named(self._newest())
        if state is None or self.trains_again():
            return None
        if not self._best and state.path.name in self.command.there:
            self.tell(f"{state.path.name} was there before the first start; it is used because no step was seen since")
        if self.whole == "trainer" and not self.command.callback and one_too_many(state.path):
            elder = self._named(self._newest(state.path))
            what = f"{elder.path.name} is used" if elder else "it is used because there is no other (with --callback it would compute none)"
            self.tell(f"{state.path.name} is of the last step, and a Trainer that goes on from it computes one more; {what}")
            return elder or state
        return state

    def _named(self, found: NewestCheckpoint | None) -> ResumePoint | None:
        if found is None or found.path is None:
            return None
        return ResumePoint(f"{(self.command.checkpoints or '').rstrip('/')}/{found.path.name}", found.step, found.path)

    def _newest(self, last: Path | None = None) -> NewestCheckpoint | None:
        """Return the newest whole checkpoint, or the newest before `last`. Those from before the first start count until a step is seen.

        None speaks against them then.
        """
        place = self.command.place
        if place is None:
            return None
        there = self.command.there if self._best else {}
        passed_over = {name: at for name, at in marks(place, self.whole).items() if last is not None and name == last.name}
        return self._whole_but(place, there | passed_over)

    def _whole_but(self, place: Path, there: dict[str, int]) -> NewestCheckpoint:
        """Return the newest whole checkpoint that is none of `there`; what is set aside for it is told."""
        found = newest_whole(place, self.whole, there)
        for path, why in found.aside:
            moved = path.name.startswith("set-aside-")
            self.run.event("checkpoint_set_aside", now=str(path), reason=why)
            other = f"the newest whole one is {found.path.name}" if found.path else "there is no other"
            self.tell(f"{short(path)} is not whole: {why}; {'renamed; ' if moved else ''}{other}")
        return found

    def doubt(self) -> str:
        """Return what speaks against the newest checkpoint of a command that ended well; empty where nothing does, or there is none."""
        return doubt(self.command.place, self.whole, self.command.there) if self.command.place is not None else ""

    def complete(self, seen: ProgressSigns | None) -> ResumePoint | None:
        """Return this run's whole checkpoint of the last step, if any: training is then complete, whatever happens after it."""
        place, began = self.command.place, read_launch_spec(self.run.attempt(1))
        if any(row.get("stages") for row in self.run.progress()) and not (seen and seen.has_stages):
            return None  # an earlier attempt came to a later stage
        if place is None or began is None or not began.started or (seen and (seen.begun_anew or (seen.step or 0) < (seen.total or 0))):
            return None
        later = ([{}, *self._pulses()][-1].get("places") or [])[1:]
        place = Path(later[-1]) if later else place
        newest = self._own(place) if later else self._whole_but(place, self.command.there)
        since = clock.in_calendar(began.started, began.facts.get("clock") or "")
        if newest.path is None or newest.step is None or changed(newest.path) < since * 1e9:
            return None
        last = max((changed(entry), step, entry) for step, entry in candidates(place, self.whole) if step is not None)
        if last[0] > changed(newest.path):  # of a later stage, whose numbers began anew
            newest = NewestCheckpoint(last[2], last[1])
            if not is_whole(last[2], self.whole):
                return None
        if self.whole == "trainer" and newest.path is not None:
            most = (read_python_json(newest.path / "trainer_state.json") or {}).get("max_steps")
        else:
            most = seen.total if seen and seen.step == seen.total else None
            if seen and seen.step is None:  # it had nothing left to do: an earlier attempt came to the last step
                most = max((row["total"] for row in self.run.progress() if row["step"] == row.get("total")), default=None)
        if not isinstance(most, int) or not 0 < most <= (newest.step or 0):
            return None
        return ResumePoint(str(newest.path), newest.step, newest.path) if later and newest.path else self._named(newest)

    def await_death(self, attempt: Attempt) -> None:
        """Start the helper of `keep` ahead, where an attempt's callback keeps a state and there is memory: its imports take seconds."""
        if self._helper is not None or not self.snapshot.exists() or host_memory().get("MemAvailable", 0) < _ROOM_TO_WAIT:
            return
        python = (read_json(attempt.folder / "pulse.json") or {}).get("python")
        if isinstance(python, str):
            with contextlib.suppress(OSError):
                self._helper = start_helper(python)

    def release(self) -> None:
        """End the helper that waits, if any, and give the folder of checkpoints free."""
        if self._helper is not None:
            self._helper.communicate()
            self._helper = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def keep(self, attempt: Attempt) -> None:
        """Make a checkpoint of what the callback of an ended attempt kept in memory, where that is newer than the newest whole one."""
        pulse, place = read_json(attempt.folder / "pulse.json") or {}, self.command.place
        python = pulse.get("python")
        if place is None or not isinstance(python, str) or not self.snapshot.exists():
            return
        if self.trains_again():
            self.snapshot.unlink()
            return
        newest = self._newest()
        if len(pulse.get("places", ())) > 1:  # it is of its newest training, not of the one that saves here
            place = Path(pulse["places"][-1])
            newest = self._own(place)
        step = newest.step if newest is not None else 0
        told, self._helper = make_checkpoint(python, self.snapshot, place, step or 0, self._helper), None
        if told and not told.startswith("checkpoint-") and _is_full(place):
            self.run.event("state_not_kept", reason=told)
            self.tell(f"the state in memory could not be made a checkpoint, because the disk of {short(place)} is full; it stays in memory")
            return
        self.snapshot.unlink(missing_ok=True)
        if told.startswith("checkpoint-"):
            self.run.event("state_kept", step=int(told.rpartition("-")[2]), state=told)
            self.tell(f"{told} was made of the newest whole state in memory")
        elif told:
            self.run.event("state_not_kept", reason=told)
            self.tell(f"the state in memory could not be made a checkpoint: {told}")

    def keep_what_stayed(self) -> None:
        """Make a checkpoint of the state that a full disk left in memory when the newest attempt ended."""
        if numbers := self.run.attempts():
            self.keep(Attempt(numbers[-1], self.run.attempt(numbers[-1]), None))

    def _has_none_but(self, told: str) -> bool:
        """True if the command's arguments do not name the folder that its Trainer saves to: nothing is saved where they say."""
        place = self.command.place
        return place is None or (place.resolve() != Path(told) and not (place.is_dir() and candidates(place, self.whole)))

    def learn(self, attempt: Attempt, callback: bool) -> Command:
        """Read what the callback tells beside its steps (where the Trainer saves, what it saw inside); return the command with that.

        callback: whether it is at work, as far as is known; without it the command's checkpoints are those of any program.
        """
        if callback != self.command.callback:
            self.command = replace(self.command, callback=callback)
            self.whole = form_of(self.command, self.card)
        pulse: Json = read_json(attempt.folder / "pulse.json") or {}
        if pulse:
            self.run.event("callback_seen", attempt=attempt.number)
        for told in read_sound_lines(attempt.folder / "inside.jsonl"):
            self.run.event(str(told.pop("event", "told_inside")), attempt=attempt.number, **told)
        if isinstance(pulse.get("place"), str) and self._has_none_but(pulse["place"]):
            there = {str(name): int(at) for name, at in (pulse.get("there") or {}).items()}
            self.command, self.whole = replace(self.command, checkpoints=pulse["place"], there=there), "trainer"
            write_command(self.run, self.command)
        return self.command
