"""Start and end the processes that pass steps on to Weights & Biases, MLflow and the like, one each; report/track.py is what they do."""

from __future__ import annotations

import contextlib
import importlib.util
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from holdfast.base.child import module_command
from holdfast.base.errors import USAGE, Stop
from holdfast.base.files import Json, read_json, write_json
from holdfast.base.signal_names import killed_by
from holdfast.base.units import span
from holdfast.config.config import Config
from holdfast.report.run.report import write_report
from holdfast.report.track import memory_of
from holdfast.run.folder import RunFolder
from holdfast.supervision.companions.watched import Helper, looking

_PATIENCE_S = 60
_OPENS_S = 10.0  # that one may take to open before that is said
_MOMENT_S = 3.0  # that the last steps may take before it is said who is waited for


def refuse_missing_trackers(config: Config) -> None:
    """Raise Stop(2) when a tracker's package is not installed: before the run, not at its end."""
    missing = [name for name in config.run.track if importlib.util.find_spec(name) is None]
    if missing:
        raise Stop(USAGE, f"run.track: {', '.join(missing)} not installed", f"pip install {' '.join(missing)}")


class TrackerProcess:
    """The process that passes steps on to one tracker. Its failure is an event, and the others go on; one that hangs begins again."""

    def __init__(self, run: RunFolder, name: str, hang_s: float, tell: Callable[[str], None]) -> None:
        self._run, self.name, self._log, self.failed, self._ending = run, name, run.path / "track.log", False, False
        self._say, self._memory, self._hang_s = tell, run.path / memory_of(name), hang_s
        self._before, self._steps, self._until = _stamp(self._memory), _stamp(run.steps_file), time.monotonic() + _OPENS_S
        self._waited_for = "open"
        self._helper = Helper(module_command("holdfast.report.track", run.path, name), self._log, hang_s, self._hung)

    def look(self) -> None:
        """Tell a failure once, soon after it came; and once each that it is long in opening, and that steps are not taken."""
        code = self._helper.look()
        if code is not None:
            if code or not self._run.summary_file.exists():  # before the run's end any end is a failure
                self._tell(code)
            return
        memory, steps = _stamp(self._memory), _stamp(self._run.steps_file)
        if memory != self._before:
            self._before, self._until, self._waited_for = memory, float("inf"), self._waited_for and "take steps"
        elif steps != self._steps and self._until == float("inf"):
            self._until = time.monotonic() + max(_OPENS_S, self._hang_s)
        self._steps = steps
        if self._waited_for and time.monotonic() > self._until:
            wait, self._until = self._waited_for, float("inf")
            self._waited_for = "take steps" if wait == "open" else ""
            self._say(f"waiting for {self.name} to {wait}: the run goes on, and its steps are passed on then; see {self._log}")

    def end(self, until: float) -> None:
        """Wait for the rest to be passed on, until that time at most."""
        self._ending = True
        code = self._helper.end(min(_MOMENT_S, max(0.0, until - time.monotonic())))
        if code is None and (left := until - time.monotonic()) > 0:
            self._say(f"waiting for {self.name} to take the last steps, {span(left)} at most")
            code = self._helper.end(left)
        if code is None:
            self._helper.child.kill()
            self._helper.child.wait()
        if code or not (read_json(self._memory) or {}).get("closed"):  # a library can end a process with code 0
            self._tell(code)

    def _hung(self, silent: float) -> None:
        self.failed = self.failed or self._ending  # no other one takes its place
        self._run.event("tracking_failed", tracker=self.name, code=None, log=str(self._log), silent_s=round(silent, 1))
        self._say(f"{self.name} gave no sign of life for {span(silent)}: its process was ended; the run goes on; see {self._log}")

    def _tell(self, code: int | None) -> None:
        if not self.failed:
            self.failed = True
            self._run.event("tracking_failed", tracker=self.name, code=code, log=str(self._log))
            how = "" if code is None else killed_by(code) if code < 0 else f"exit code {code}"
            ended = f"failed ({how})" if code else "did not end in time" if code is None else "ended before all was passed on (exit code 0)"
            self._say(f"{self.name} {ended}: it gets no more steps of this start; the run itself is whole; {self._log} says why")


def _stamp(file: Path) -> tuple[int, int] | None:
    """Return what changes when a file is written anew; None where there is none."""
    try:
        return (facts := file.stat()).st_ino, facts.st_mtime_ns
    except OSError:
        return None


@contextlib.contextmanager
def tracked(run: RunFolder, config: Config, tell: Callable[[str], None]) -> Iterator[Json]:
    """Have the run tracked while this lasts. A tracker that fails or hangs is told and an event at once, and its log says why.

    What is yielded holds at the end what the summary lacked of trackers that failed after it was written; the file has it then.
    """
    late: Json = {}
    trackers = [TrackerProcess(run, name, config.run.hang_s, tell) for name in config.run.track]

    def look() -> None:
        for tracker in trackers:
            with contextlib.suppress(OSError):  # the supervisor meets the same
                tracker.look()

    try:
        with looking(look) if trackers else contextlib.nullcontext():
            yield late
    finally:
        until = time.monotonic() + _PATIENCE_S
        for tracker in trackers:
            tracker.end(until)
        summary = read_json(run.summary_file) or {}
        known, failed = summary.get("trackers_failed", []), {tracker.name for tracker in trackers if tracker.failed}
        if summary and failed - {*known}:
            late["trackers_failed"] = sorted(failed | {*known})
            with contextlib.suppress(OSError):  # a full disk has been told of
                write_json(run.summary_file, summary | late)
                write_report(run, run.path / "report.html")
