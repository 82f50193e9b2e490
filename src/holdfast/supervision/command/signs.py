"""How far somebody else's command is, and whether it lives, from what is there to see. Judges nothing."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.base.files import Json, read_json
from holdfast.callback.account import step_counted
from holdfast.diagnosis.logs.counters import Counter, is_bar
from holdfast.machine import clock
from holdfast.processes.tree import below, bytes_read, cpu_seconds
from holdfast.run.attempt import LaunchSpec, read_launch_spec
from holdfast.run.command import Command
from holdfast.supervision.command.cpu_limit import TooSlow, cpu_limit
from holdfast.supervision.command.event_files import EventFile
from holdfast.supervision.foreign_checkpoints.newest import earliest, named_since, states_since, total_of

_BUSY = 0.05  # of one core: it computes, if only beside others
_READING = 1 << 17  # bytes a second: it loads something
_SELDOM_S = 2.0  # between looks at what costs more than a file's size
_MOST = 1 << 22  # bytes of new output that are read for its steps; what is before them is passed over
_PATTERN_S = 2.0  # of the processor, for what was printed since the last look
_OFTEN = 3  # pairs of steps between which a line stood: it comes by itself
_MOST_KINDS, _LONGEST = 500, 200  # of lines that are remembered, and letters of one
_NUMBER = re.compile(r"(?<![\w.])(?<![eE][-+])\d{1,12}(?!\w|\.\d)")  # no part of 0.25 or 2e-05
_KEYS = ("step", "global_step", "train/global_step", "iteration", "iter", "update")  # of a row of JSON


@dataclass(frozen=True)
class ProgressSigns:
    """step, total: as far as known; source: who told. stepped, printed (or told otherwise), worked: since the last look.

    first: the first step above 0 that this attempt has shown; wrote: first and newest step of the checkpoints that it has written.
    epochs: (epochs begun, epochs announced, None: not told) where it prints any. rival: another count that it printed,
    which may be its own; begun_anew: its count fell back to its beginning, and goes to an end that is not known; has_stages: its
    numbers began anew behind a last step, known or not; from_zero: they began at 0, and how far they go is not known.
    """

    step: int | None
    total: int | None
    source: str | None
    stepped: bool
    printed: bool
    worked: bool
    first: int | None = None
    wrote: tuple[int, int] | None = None
    epochs: tuple[int, int | None] | None = None
    rival: str = ""
    begun_anew: bool = False
    has_stages: bool = False
    from_zero: bool = False


class Chatter:
    """Tells what a program prints from what it, or a monitor beside it, prints all the while, which is no sign that it trains."""

    def __init__(self) -> None:
        self._between: dict[str, int] = {}  # by a line's letters: between how many pairs of steps it was printed
        self._now: set[str] = set()
        self._rest = ""

    def is_news(self, text: str, stepped: bool) -> bool:
        """Return whether there is a line, or a bar, that has not stood between steps again and again. stepped: since the last call."""
        if stepped:
            for letters in self._now:
                if letters in self._between or len(self._between) < _MOST_KINDS:
                    self._between[letters] = self._between.get(letters, 0) + 1
            self._now = set()
        *lines, self._rest = (self._rest[-_LONGEST:] + text).replace("\r", "\n").split("\n")
        known = [not line.strip() or self._knows(line) for line in lines]
        return not all(known)

    def _knows(self, line: str) -> bool:
        if is_bar(line):
            return False
        letters = "".join(filter(str.isalpha, line))[:_LONGEST]
        if len(self._now) < _MOST_KINDS:
            self._now.add(letters)
        return self._between.get(letters, 0) >= _OFTEN


class Signs:
    """What one attempt shows. The best teller of steps wins: the callback, the user's own, the output, event files, checkpoints."""

    def __init__(self, command: Command, attempt: Path, since: float) -> None:
        self.command, self.attempt, self.since = command, attempt, since
        orders = (read_launch_spec(attempt) or LaunchSpec({})).facts
        self.resumed = int(orders.get("resumed_step") or 0)
        own = command.progress
        self.counter = Counter(re.compile(own) if own is not None and "(" in own else None)
        if self.resumed and (total := total_of(Path(command.folder, str(orders.get("resumed_from"))), self.resumed)):
            self.counter.of(total)
        self.file = Path(command.folder) / own if own is not None and "(" not in own else None
        self.events = EventFile(command.place, clock.in_calendar(since)) if command.place is not None else None
        self.step: int | None = None
        self.first: int | None = None
        self._silent_first: int | None = None  # as checkpoints and the like told it, before steps were seen in the output
        self.wrote: tuple[int, int] | None = None
        self.chatter, self._news = Chatter(), ""
        self.too_slow = False  # whether the user's expression took too long
        self._at = 0
        self._tail = b""
        self._beat: object = None  # of the callback: when it published last
        self._trainings = 1  # that it saw begin
        self._began: int | None = None  # the step behind which the first of them began
        self._work: tuple[float, float, int] | None = None  # when, seconds computed, bytes read
        self._seldom = self._progress_mark = 0.0
        self._slow: tuple[int | None, int | None, str | None] = (None, None, None)

    def pulse(self) -> Json | None:
        """Return what the callback published last; None where there is no callback."""
        return read_json(self.attempt / "pulse.json")

    def look(self, pid: int | None) -> ProgressSigns:
        printed, beat = self._read_output(), self._beat
        step, total, source = self._told()
        stepped = step is not None and step != self.step
        self.step = step if step is not None else self.step
        told = (printed and self.chatter.is_news(self._news, stepped)) or self._file_grew() or self._beat != beat
        if source == "output":
            self.first = min(filter(None, (self._silent_first, self.counter.first)), default=None)
        else:
            if source == "callback" and self._began is not None and step is not None:
                step = self._began + 1 if step > self._began else None  # what it loaded is no step of it
            self._silent_first = self.first = min(filter(None, (step, self._silent_first)), default=None)  # what was printed counted others
        seen = ProgressSigns(self.step, total, source, stepped, told, self._worked(pid), self.first, self.wrote)
        counter = self.counter
        stages = counter.has_stages or self._trainings > 1
        seen = replace(seen, epochs=counter.epochs.begun, rival=counter.rival, begun_anew=counter.begun_anew, has_stages=stages)
        return replace(seen, from_zero=source == "output" and counter.from_zero)

    def last(self, well: bool = True) -> ProgressSigns:
        """Look once more at all an attempt shows, now that it has ended and nothing follows. well: as of Counter.end."""
        self._read_output()
        self._count("\n")
        self.counter.end(self.resumed, well)
        self._seldom = 0.0
        return self.look(None)

    def _told(self) -> tuple[int | None, int | None, str | None]:
        pulse = self.pulse()
        self._beat = pulse.get("time") if pulse is not None else None
        self._trainings, self._began = int((pulse or {}).get("training", 1)), (pulse or {}).get("began")
        if pulse is not None and isinstance(pulse.get("step"), int) and not pulse.get("aside"):
            counted = step_counted(self.attempt)  # the pulse is published seldomer than each short step
            return pulse["step"] if counted is None else counted, pulse.get("steps"), "callback"
        now = time.monotonic()
        if now - self._seldom > _SELDOM_S or not self._seldom:
            self._seldom, self._slow = now, self._look_seldom()
        if self._slow[1]:
            self.counter.of(self._slow[1])
        if self.file is not None:
            return self._step_in_file(), self._slow[1], "file"
        beyond = self.wrote is not None and self.wrote[1] > (self.counter.total or self.wrote[1])  # it counts something else
        if self.counter.step is not None and not beyond and (self.counter.grew or self._slow[0] is None):
            return self.counter.step, self.counter.total or self._slow[1], "output"
        return self._slow

    def _look_seldom(self) -> tuple[int | None, int | None, str | None]:
        place = self.command.place
        if place is None or self.events is None:
            return None, None, None
        step = self.events.look()
        look = states_since if self.command.launcher is not None or self.command.callback else named_since
        saved = look(place, clock.in_calendar(self.since))
        if saved:
            self.wrote = self.wrote[0] if self.wrote else earliest(place, [step for step, _ in saved]), saved[0][0]
        written = saved[0] if saved else None
        if written is not None and (step is None or step <= written[0]):
            return *written, "trainer_state.json" if look is states_since else "checkpoint"
        return (step, written[1] if written else None, "event file") if step is not None else (None, None, None)

    def _step_in_file(self) -> int | None:
        """Return what the user's progress file told last; None where it told nothing, or this attempt did not write to it."""
        assert self.file is not None
        with contextlib.suppress(OSError):
            if self.file.stat().st_mtime < clock.in_calendar(self.since):
                return None
            with self.file.open("rb") as handle:
                handle.seek(max(0, handle.seek(0, os.SEEK_END) - 4096))
                return number_told(handle.read().decode(errors="replace"))
        return None

    def _file_grew(self) -> bool:
        if self.file is None:
            return False
        with contextlib.suppress(OSError):
            mark = self.file.stat().st_mtime
            grew, self._progress_mark = mark != self._progress_mark and mark >= clock.in_calendar(self.since), mark
            return grew
        return False

    def _read_output(self) -> bool:
        """Read new output and count the steps in it; True if there was any."""
        with contextlib.suppress(OSError), (self.attempt / "output.log").open("rb") as handle:
            size = handle.seek(0, os.SEEK_END)
            if size == self._at:
                return False
            if size < self._at or size - self._at > _MOST:  # its middle was cut out, or there is more than is worth reading
                self._at = max(0, size - _MOST)
            handle.seek(self._at)
            data = self._tail + handle.read(_MOST)
            self._at = handle.tell()
            cut = len(data) - next((n for n in (1, 2, 3) if data[-n:][:1] >= b"\xc0"), 0)  # a letter that is not there to its end
            data, self._tail = data[:cut], data[cut:]
            self._news = data.decode(errors="replace")
            self._count(self._news)
            return True
        return False

    def _count(self, text: str) -> None:
        """Read steps out of new output; an expression of the user's that takes too long is not asked again."""
        if self.counter.own is None:
            self.counter.feed(text)
            return
        try:
            with cpu_limit(_PATTERN_S):
                self.counter.feed(text)
        except TooSlow:
            self.too_slow, self.counter = True, Counter()

    def _worked(self, pid: int | None) -> bool:
        if pid is None:
            return False
        now, before = time.monotonic(), self._work
        if before is not None and now - before[0] < 1.0:
            return False
        pids = [pid, *below(pid)]
        self._work = (now, cpu_seconds(pids), bytes_read(pids))
        if before is None:
            return False
        took = now - before[0]
        return self._work[1] - before[1] > _BUSY * took or self._work[2] - before[2] > _READING * took


def number_told(text: str) -> int | None:
    """Return the step that the last line with one tells: of a row of JSON by its key, else the last whole number; None where none does."""
    for line in reversed(text.splitlines()):
        row: Json = {}
        if line.lstrip().startswith("{"):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                continue  # not written to its end
        told = [row[key] for key in _KEYS if isinstance(row.get(key), int)] or [int(number) for number in _NUMBER.findall(line)[-1:]]
        if told:
            return int(told[0])
    return None


def steps_believed(attempt: Path, total: int | None) -> Counter | None:
    """Count again what an attempt printed, believing its first numbers; None where they are not of this total, or there are none."""
    counter = Counter(sightings=1)
    with contextlib.suppress(OSError), (attempt / "output.log").open("rb") as handle:
        handle.seek(max(0, handle.seek(0, os.SEEK_END) - _MOST))
        counter.feed(handle.read().decode(errors="replace"))
    counter.end()
    return counter if counter.step is not None and counter.total == total else None
