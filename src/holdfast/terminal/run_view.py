"""What a run shows in a terminal: a progress line with the latest numbers, incidents as they come, a summary. Plain lines elsewhere.

A terminal may go away: what is said after that stands in the run's supervisor.log.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from holdfast.base.files import Json, Tail, last_line
from holdfast.base.inert import brief, hanging, inert
from holdfast.base.safe_open import supervisor_log
from holdfast.base.units import counted, span
from holdfast.config.config import Config
from holdfast.planning.time_left import HeldOutWork, judged, time_left
from holdfast.processes.attempt import Attempt
from holdfast.report.notices import TOLD, notice, turn
from holdfast.report.summary_lines import next_command, summary_lines
from holdfast.report.words import evaluated, words_of
from holdfast.run.folder import RunFolder
from holdfast.run.plan import Seconds
from holdfast.run.timeline import newest_settings, read_timeline
from holdfast.run.types import FULL_DISK_BYTES
from holdfast.terminal.progress_line import ProgressWords, live_line

_LOOK_EVERY_S = 0.2
_PLAIN_LINE_EVERY_S = 15.0


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Let the error through; rich would end the process."""
        raise


def _end(bar: Progress | Live) -> None:
    try:
        with contextlib.suppress(IndexError):  # rich stops what Ctrl-C came upon while it was started, and finds no hook of it
            bar.stop()
    finally:
        bar.console.show_cursor(True)


class Terminal:
    """The voice of one command. With `quiet` only what went wrong and the summary are said."""

    def __init__(self, to_stderr: bool, quiet: bool) -> None:
        self.console = _Console(stderr=to_stderr, highlight=False, soft_wrap=True)
        self.quiet = quiet
        self._terminals = {number for number in (1, 2) if os.isatty(number)}
        self._log: Path | None = None
        self._run: RunFolder | None = None
        self._looking_on = False
        self._steps = 0
        self._progress: Live | None = None
        self._shown = ProgressWords(0, 0)
        self._per_second = "tokens"
        self._began, self._starting = 0.0, _PLAIN_LINE_EVERY_S
        self._looked = self._printed = 0.0
        self._events: Tail | None = None
        self._told_step: int | None = None
        self._disk_is_full = self._told_stop = False
        self._mean_loss: float | None = None
        self._judged = HeldOutWork()
        self._left: tuple[int, Seconds | None] = (0, None)  # of the step that it was asked after

    def fall_back_on(self, log: Path | None) -> None:
        """Go on in `log` when the terminal goes away, instead of dying with it (None)."""
        self._log = log

    def leave(self) -> None:
        """Turn the outputs of a terminal that is gone over to the log. A signal handler may call this."""
        if self._log is None or not self._terminals:
            return
        descriptor = supervisor_log(self._log, f"the terminal is gone; process {os.getpid()} continues, and writes here what it has to say")
        for number in self._terminals:
            os.dup2(descriptor, number)
        self._terminals = set()
        os.close(descriptor)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Write to the terminal; where nobody reads it any more, go on in the log. What was being written is lost."""
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.EIO, errno.EPIPE) or self._log is None:
                raise
            self._terminals.add(self.console.file.fileno())
            self.leave()

    def _print(self, *things: Any) -> None:
        with self._writing():
            self.console.print(*things)

    def say(self, text: str) -> None:
        if not self.quiet:
            self._print(escape(self._fitted(inert(text), 2)))

    def _fitted(self, text: str, indent: int, begins_at: int = 0) -> str:
        """Wrap the text to lines of the terminal; as it is where there is none."""
        return hanging(text, self.console.width, indent, begins_at) if self.console.is_terminal else text

    def tell(self, text: str) -> None:
        """Say in any case that something went wrong, or changed hands."""
        told = escape(self._fitted(inert(text), 2, begins_at=2))
        self._print(f"[yellow]![/yellow] {told}" if self.console.is_terminal else f"! {told}")

    def begin(self, run: RunFolder, config: Config, looking_on: bool = False) -> None:
        """Start to show progress of `run`. Who is `looking_on` hears from the journal what its supervisor says itself."""
        self._run, self._looking_on = run, looking_on
        self._events = Tail(run.events_file, from_end=True, key="event")
        self._steps, self._judged = newest_settings(read_timeline(run.timeline_file)).steps, judged(run)
        self._per_second = words_of(config).per_second
        self.say(f"run: {run.path}  ({words_of(config).title}, {counted(self._steps, 'step')})")
        self._began, self._starting = time.monotonic(), _PLAIN_LINE_EVERY_S
        if self.quiet or not self.console.is_terminal:
            return
        self._shown = ProgressWords(run.committed(), self._steps, "starting")
        self._progress = live_line(lambda: self._shown, self.console)
        self._progress.start()

    def tick(self, attempt: Attempt) -> None:
        """Look at the journal's newest row now and then and show it."""
        now = time.monotonic()
        if self._run is None or now - self._looked < _LOOK_EVERY_S:
            return
        self._looked = now
        if not self.console.is_terminal:
            self._stop_progress()  # there was one before
        self._tell_events()
        self._tell_full_disk(self._run, attempt.unwritten())
        row = None if self.quiet else last_line(self._run.steps_file)
        if row is None:
            self._tell_start(now - self._began)
            return
        if self._progress is not None:
            self._shown = self._line(row)
            with self._writing():
                self._progress.refresh()
        elif row["step"] != self._told_step and now - self._printed >= _PLAIN_LINE_EVERY_S:
            self._printed, self._told_step = now, row["step"]
            self._print("  ".join([f"step {row['step']}/{self._steps}", *self._numbers(row), *filter(None, [self._ahead(row)])]))

    def tell_stop(self) -> None:
        """Say once, where a stop was asked for, what is waited for until the run ends."""
        if self._run is None or self._told_stop:
            return
        self._told_stop = True
        if self._run.committed():
            self.say("asked to stop: the step in flight is finished and saved")
        else:
            self.say("asked to stop: the trainer ends as soon as its model is loaded; no step is computed")

    def _tell_start(self, seconds: float) -> None:
        """Say, where no live line tells it, that there is no step yet: after 15 seconds, and each time that twice as many have passed."""
        if self._told_stop:
            return
        if self._progress is None and seconds >= self._starting:
            self._starting *= 2
            self.say(f"{span(seconds)}: no step yet; the model is loaded and its fast paths are tried before the first one")

    def _ahead(self, row: Json) -> str:
        """Say how long the steps that are left may take; empty where nothing is known of it, or none is left."""
        if self._run is None or row["step"] >= self._steps:
            return ""
        if self._left[0] != row["step"]:
            self._left = (row["step"], time_left(self._run, row["step"], self._steps, self._judged))
        if (left := self._left[1]) is None:
            return ""
        low, high = span(left.low), span(left.high)
        return f"{low} to {high} left" if low != high else f"{low} left"

    def _line(self, row: Json) -> ProgressWords:
        """Return the live line's words of the newest step."""
        loss, *others = self._numbers(row)
        left = self._ahead(row) or ("time left: not known yet" if row["step"] < self._steps else "")
        elapsed = f"{span(time.monotonic() - self._began)} so far"
        return ProgressWords(row["step"], self._steps, loss, left, (*others, elapsed))

    @contextlib.contextmanager
    def counting(self, what: str, total: int) -> Iterator[Callable[[int], None]]:
        """Show how much of `total` is done; call what this yields with the number of new ones. A bar, or a line now and then elsewhere."""
        columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("ETA"), TimeRemainingColumn())
        hidden = self.quiet or not self.console.is_terminal
        bar = Progress(*columns, console=self.console, transient=True, auto_refresh=False, disable=hidden)
        task = bar.add_task(what, total=total)
        self._printed = time.monotonic()
        done = 0

        def show(new: int) -> None:
            nonlocal done
            done += new
            bar.update(task, completed=done)
            with self._writing():
                bar.refresh()
            if hidden and time.monotonic() - self._printed >= _PLAIN_LINE_EVERY_S:
                self._printed = time.monotonic()
                self.say(f"{what}: {done:,} of {total:,}")

        try:
            with self._writing():
                bar.start()
            yield show
        finally:
            with self._writing():
                _end(bar)

    def _numbers(self, row: Json) -> list[str]:
        """Format the latest step's figures, the most telling first; the arrow compares its loss with the mean of those shown before."""
        if row["loss"] is None:
            return ["no samples: all of this step are in quarantine"]
        mean = self._mean_loss if self._mean_loss is not None else row["loss"]
        trend = "↓" if row["loss"] < 0.99 * mean else "↑" if row["loss"] > 1.01 * mean else "→"
        self._mean_loss = 0.8 * mean + 0.2 * row["loss"]
        rate = row["tokens"] / row["seconds"] if row["seconds"] else 0.0
        memory = row["peak_bytes"] / 2**30
        loss, speed = f"loss {row['loss']:.4f} {trend}", f"{rate:,.0f} {self._per_second}/s"
        return [loss, speed, f"lr {row['lr']:.1e}", f"grad norm {row['grad_norm']:.3f}", f"{memory:.2f} GiB"]

    def _tell_events(self) -> None:
        """Say what the trainer and the writer have journalled since the last look."""
        for event in self._events.new()[0] if self._events else ():
            found = notice(event)
            if event["event"] == "sign":
                (self.say if event["sign"] == "first" else self.tell)(event["says"])
            elif event["event"] == "evaluated":
                self.say(evaluated(event))
            elif found and (self._looking_on or event["event"] not in TOLD):
                self.tell(brief(f"{found[0]} ({found[1]})"))
            elif self._looking_on and (words := turn(event)):
                self.tell(brief(words))

    def _tell_full_disk(self, run: RunFolder, unwritten: int) -> None:
        """Tell once when the disk takes no more; that it takes rows again is an event of the trainer's."""
        if unwritten and not self._disk_is_full:
            why = "is full" if shutil.disk_usage(run.path).free < FULL_DISK_BYTES else "takes nothing"
            self.tell(
                f"the disk of {run.path} {why}: training continues, its state is kept in memory, checkpoints wait until it does"
                f" (since step {run.committed() + 1})"
            )
        self._disk_is_full = unwritten > 0

    def end(self) -> None:
        """Stop showing progress, after the last that was journalled is said."""
        if self._run is not None:
            self._tell_events()
            self._run = None
        self._stop_progress()

    def _stop_progress(self) -> None:
        if self._progress is not None:
            with self._writing():
                _end(self._progress)
            self._progress = None

    def summary(self, summary: Json, run: RunFolder) -> None:
        """Print the end of a run on a few lines; wrapped under each other in a terminal, one line each elsewhere."""
        for name, value in summary_lines(summary, run):
            self._print(escape(f"{name:<14} {self._fitted(inert(value), 15, begins_at=15)}"))
        for name, value in next_command(summary, run):  # whole, to be typed
            self._print(escape(inert(f"{name:<14} {value}")))
