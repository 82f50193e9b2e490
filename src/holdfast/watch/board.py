"""What is known of all runs that are watched, kept fresh at little cost: read from their journals, locks and logs, never written."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from holdfast.base.errors import WRONG_VALUES, Stop, error_message, wrong_value
from holdfast.base.files import Json, last_line
from holdfast.base.locks import taken
from holdfast.experiments.compare import compared
from holdfast.privacy.scrub import Person, Scrubber, secrets_of
from holdfast.report.run.report_parts import without_secrets
from holdfast.report.summarise import incidents
from holdfast.report.words import change_of_loss, unhealthy
from holdfast.run.attempt import closed_attempts
from holdfast.run.folder import RunFolder, is_run, runs_in, runs_of_rounds
from holdfast.supervision.runs import entry, no_run
from holdfast.supervision.standing import RunStanding, look
from holdfast.watch import detail
from holdfast.watch.curve import Curves, Point, speed
from holdfast.watch.detail import logged_losses

T = TypeVar("T")
_FRESH_S = 1.0  # how old an answer may be
_WORDS = ("command", "reason", "problems")  # of a run's entry: what is not holdfast's own
_LISTS = ("charts", "loss_curve", "held_out", "notices", "output", "ranks", "trials")


@dataclass
class _Known:
    """One run as it was at the last look, and what that answer depends on."""

    folder: RunFolder
    curves: Curves
    key: tuple[object, ...] = ()
    row: Json = field(default_factory=dict)
    incidents_key: tuple[int, int] = (-1, -1)
    incidents: list[Json] = field(default_factory=list)

    def losses(self) -> list[Point]:
        self.curves.read()
        return self.curves.points()


class Board:
    """The runs of some places: run folders, and folders of runs, in which new ones may appear. Safe to ask from many threads."""

    def __init__(self, places: list[Path], must_be_runs: bool) -> None:
        self._places = places
        self._lock = threading.Lock()
        self._known: dict[str, _Known] = {}
        self._rows: dict[str, Json] = {}
        self._looked = float("-inf")
        self._scrubber = Scrubber(Person(secrets=secrets_of(os.environ)))
        for place in places if must_be_runs else ():
            if not is_run(place) and not runs_in(place) and not runs_of_rounds(place):
                raise no_run(place)

    def rows(self) -> dict[str, Json]:
        """Return one entry a run by its name, as `status --json` has it, with the newest numbers."""
        with self._lock:
            if time.monotonic() - self._looked >= _FRESH_S:
                self._find()
                self._rows = {name: self._row(name, known) for name, known in self._known.items()}
                self._looked = time.monotonic()
            return self._rows

    def folder(self, name: str) -> RunFolder | None:
        self.rows()
        known = self._known.get(name)
        return known.folder if known else None

    def detail(self, name: str) -> Json | None:
        """Return all that the page shows of one run; None where there is no such run."""
        row = self.rows().get(name)
        with self._lock:
            known = self._known.get(name)
            if row is None or known is None:
                return None
            problems = list(row["problems"])
            run = known.folder
            found: Json = {"chart": "", **{name: [] for name in _LISTS}, "next": ""}
            reads: dict[str, Callable[[], object]] = {
                "held_out": lambda: detail.held_out(run),
                "loss_curve": lambda: known.losses(),
                "charts": lambda: detail.charts(run, known.curves, found["held_out"]),
                "chart": lambda: detail.loss_svg(found["loss_curve"], known.incidents),
                "notices": lambda: detail.happened(run, self._scrubber),
                "output": lambda: detail.output(run, self._scrubber),
                "ranks": lambda: detail.ranks(run, row["attempts"]) if row["state"] == "running" and row["attempts"] else [],
                "trials": lambda: detail.trials(run) if row["state"] == "running" else [],
                "next": lambda: detail.what_comes_next(run, row),
            }
            for key, read in reads.items():
                try:
                    found[key] = read()
                except (OSError, Stop, *WRONG_VALUES) as error:
                    problems.append(wrong_value(key, error))
            return row | found | {"incidents": known.incidents, "problems": problems}

    def compared(self, name: str, other: str) -> Json | None:
        """Compare two runs as `holdfast compare` does: differences, their causes, and both courses; None for no such run."""
        self.rows()
        with self._lock:
            one, two = self._known.get(name), self._known.get(other)
            if one is None or two is None:
                return None
            chart = detail.both_losses(
                (name, other), (one.losses() or logged_losses(one.folder), two.losses() or logged_losses(two.folder))
            )
        try:
            told = compared({one.folder.path: name, two.folder.path: other})
        except (OSError, Stop, *WRONG_VALUES) as error:  # one is no run of ours, has no plan yet, or is damaged
            why = str(error).splitlines()[0] if isinstance(error, Stop) else error_message(error)
            told = {"runs": [name, other], "differences": [], "band": None, "likely": [], "unknown": [why]}
        return told | {"chart": chart}

    def _find(self) -> None:
        folders = [folder for place in self._places for folder in ([RunFolder(place)] if is_run(place) else runs_in(place))]
        found = {folder: folder.path.name for folder in folders}
        found |= {folder: name for place in self._places if not is_run(place) for name, folder in runs_of_rounds(place)}
        known = {one.folder.path: one for one in self._known.values()}
        self._known = {}
        for folder, called in found.items():
            own = os.fsencode(called).decode(errors="backslashreplace")  # links and labels are UTF-8
            name, number = own, 2
            while name in self._known:
                name, number = f"{own}~{number}", number + 1
            self._known[name] = known.get(folder.path) or _Known(folder, Curves(_journal(folder)))

    def _row(self, name: str, known: _Known) -> Json:
        """Return the run's entry, looked at anew only where something of it changed, or it lives."""
        key = _signature(known.folder)
        if key != known.key or known.row.get("state") == "running":
            known.key = key
            standing = look(known.folder)
            row: Json = {"name": name} | entry(standing, lambda folder: self._last_incident(known)) | _numbers(standing)
            told = {key: without_secrets(row[key], self._scrubber) for key in _WORDS if key in row}
            known.row = row | told | {"incidents_seen": len(known.incidents)}
        return known.row

    def _last_incident(self, known: _Known) -> Json | None:
        attempts = known.folder.attempts()
        size = known.folder.events_file.stat().st_size if known.folder.events_file.exists() else 0
        if known.incidents_key != (len(attempts), size):
            ends = {number: end.facts for number, end in closed_attempts(known.folder)}
            told = incidents([], list(known.folder.events()), list(ends.values())) if ends else []
            known.incidents = [without_secrets(detail.in_the_books_words(one, ends), self._scrubber) for one in told]
            known.incidents_key = len(attempts), size
        return known.incidents[-1] if known.incidents else None


def _journal(folder: RunFolder) -> Path:
    return folder.progress_file if folder.command_file.exists() else folder.steps_file


def _signature(folder: RunFolder) -> tuple[object, ...]:
    """Return a value that changes when something of a run does, at the price of a few looks at the disk."""
    facts: list[object] = []
    for file in (
        _journal(folder),
        folder.events_file,
        folder.evaluations_file,
        folder.summary_file,
        folder.supervisor_lock,
        folder.path / "attempts",
    ):
        try:
            found = file.stat()
            facts.append((found.st_mtime_ns, found.st_size, found.st_ino))
        except OSError as error:
            facts.append(error.errno)
    for lock in (folder.supervisor_lock, folder.trainer_lock):
        try:
            facts.append(taken(lock))
        except OSError as error:
            facts.append(error.errno)
    return tuple(facts)


def _numbers(standing: RunStanding) -> Json:
    """Return the newest step in figures; None is unknown."""
    row = standing.last_step
    rate = speed(row)
    return {
        "loss": row.get("loss"),
        "grad_norm": row.get("grad_norm"),
        "lr": row.get("lr"),
        "peak_bytes": row.get("peak_bytes"),
        "tokens_per_second": None if rate is None else round(rate, 1),
        "held_out_loss": _held_out_loss(standing.run),
        "held_out_change": _judged(lambda: change_of_loss(standing.summary.get("loss") or {}), ""),
        "ills": _judged(lambda: unhealthy(standing.summary), list[str]()),
    }


def _held_out_loss(run: RunFolder) -> float | None:
    try:
        found = (last_line(run.evaluations_file) or {}).get("loss")
    except (OSError, Stop, *WRONG_VALUES):  # told with the run's detail
        return None
    return found if isinstance(found, int | float) else None


def _judged(judge: Callable[[], T], instead: T) -> T:
    """Judge a summary; one of another version, or damaged, says nothing."""
    try:
        return judge()
    except WRONG_VALUES:
        return instead
