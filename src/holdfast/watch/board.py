"""What is known of all runs that are watched, kept fresh at little cost: read from their journals, locks and logs, never written."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.base.errors import WRONG_VALUES, Stop, wrong_value
from holdfast.base.files import Json
from holdfast.base.inert import inert
from holdfast.base.locks import taken
from holdfast.base.safe_open import open_regular
from holdfast.privacy.scrub import Person, Scrubber, secrets_of
from holdfast.report.notices import notice, turn
from holdfast.report.summarise import incidents
from holdfast.report.svg import Marker, line_chart
from holdfast.report.words import evaluated, unhealthy
from holdfast.run.attempt import closed_attempts
from holdfast.run.folder import RunFolder
from holdfast.supervision.runs import entry, is_run, no_run, runs_in
from holdfast.supervision.standing import Standing, look
from holdfast.watch.curve import Curve

_FRESH_S = 1.0  # how old an answer may be
_MOST_WORDS = 30  # events that are told of a run
_OUTPUT_BYTES, _OUTPUT_LINES = 8192, 20


@dataclass
class _Known:
    """One run as it was at the last look, and what that answer depends on."""

    folder: RunFolder
    curve: Curve
    key: tuple[object, ...] = ()
    row: Json = field(default_factory=dict)
    incidents_key: tuple[int, int] = (-1, -1)
    incidents: list[Json] = field(default_factory=list)


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
            if not is_run(place) and not runs_in(place):
                raise no_run(place)

    def rows(self) -> dict[str, Json]:
        """One entry a run by its name, as `status --json` has it, with the newest numbers."""
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
        """All that the page shows of one run; None where there is no such run."""
        row = self.rows().get(name)
        with self._lock:
            known = self._known.get(name)
            if row is None or known is None:
                return None
            problems = list(row["problems"])
            found: Json = {"chart": "", "loss_curve": [], "incidents": known.incidents, "notices": [], "output": []}
            for key, read in (("loss_curve", self._curve), ("notices", self._notices), ("output", self._output)):
                try:
                    found[key] = read(known)
                except (OSError, Stop, *WRONG_VALUES) as error:
                    problems.append(wrong_value(key, error))
            found["chart"] = _chart(found["loss_curve"], known.incidents)
            return row | found | {"problems": problems}

    def _find(self) -> None:
        folders = [folder for place in self._places for folder in ([RunFolder(place)] if is_run(place) else runs_in(place))]
        known = {one.folder.path: one for one in self._known.values()}
        self._known = {}
        for folder in dict.fromkeys(folders):
            name, number = folder.path.name, 2
            while name in self._known:
                name, number = f"{folder.path.name}~{number}", number + 1
            self._known[name] = known.get(folder.path) or _Known(folder, Curve(_journal(folder)))

    def _row(self, name: str, known: _Known) -> Json:
        """The run's entry, looked at anew only where something of it changed, or it lives."""
        key = _signature(known.folder)
        if key != known.key or known.row.get("state") == "running":
            known.key = key
            standing = look(known.folder)
            known.row = {"name": name} | entry(standing, lambda folder: self._last_incident(known)) | _numbers(standing)
        return known.row

    def _last_incident(self, known: _Known) -> Json | None:
        attempts = known.folder.attempts()
        size = known.folder.events_file.stat().st_size if known.folder.events_file.exists() else 0
        if known.incidents_key != (len(attempts), size):
            ends = [end.facts for _, end in closed_attempts(known.folder)]
            known.incidents = incidents([], list(known.folder.events()), ends) if ends else []
            known.incidents_key = len(attempts), size
        return known.incidents[-1] if known.incidents else None

    def _curve(self, known: _Known) -> list[list[float]]:
        known.curve.read()
        return [[step, loss] for step, loss in known.curve.points()]

    def _notices(self, known: _Known) -> list[Json]:
        """The newest events worth telling, in words, oldest first."""
        found = []
        for event in known.folder.events():
            told = notice(event)
            words = f"{told[0]} ({told[1]})" if told else evaluated(event) if event["event"] == "evaluated" else turn(event)
            if event["event"] == "sign":
                words = event["says"]
            if words:
                found.append({"time": event["time"], "says": self._scrubber.secrets(inert(str(words)))})
        return found[-_MOST_WORDS:]

    def _output(self, known: _Known) -> list[str]:
        """The last lines that the newest attempt printed, without secrets."""
        attempts = known.folder.attempts()
        log = known.folder.attempt(attempts[-1]) / "output.log" if attempts else known.folder.supervisor_log
        try:
            with open_regular(log) as handle:
                handle.seek(max(0, os.fstat(handle.fileno()).st_size - _OUTPUT_BYTES))
                text = handle.read(_OUTPUT_BYTES).decode(errors="replace")
        except FileNotFoundError:
            return []
        lines = [line.rpartition("\r")[2] for line in text.replace("\r\n", "\n").splitlines()]
        return [inert(line) for line in self._scrubber.secrets("\n".join(lines[-_OUTPUT_LINES:])).split("\n")]


def _journal(folder: RunFolder) -> Path:
    return folder.progress_file if folder.command_file.exists() else folder.steps_file


def _signature(folder: RunFolder) -> tuple[object, ...]:
    """What changes when something of a run does, at the price of a few looks at the disk."""
    facts: list[object] = []
    for file in (_journal(folder), folder.events_file, folder.summary_file, folder.supervisor_lock, folder.path / "attempts"):
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


def _numbers(standing: Standing) -> Json:
    """The newest step in figures; None is unknown."""
    row = standing.last_step
    seconds, tokens = row.get("seconds"), row.get("tokens")
    rate = None
    if isinstance(seconds, int | float) and isinstance(tokens, int | float) and seconds > 0:
        rate = round(tokens / seconds, 1)
    return {
        "loss": row.get("loss"),
        "grad_norm": row.get("grad_norm"),
        "lr": row.get("lr"),
        "peak_bytes": row.get("peak_bytes"),
        "tokens_per_second": rate,
        "ills": _ills(standing.summary),
    }


def _ills(summary: Json) -> list[str]:
    try:
        return unhealthy(summary)
    except WRONG_VALUES:
        return []


def _chart(points: list[list[float]], found: list[Json]) -> str:
    marks = [Marker(one["step"], str(number), f"step {one['step']}: {one['cause']}") for number, one in enumerate(found, 1)]
    return line_chart([step for step, _ in points], [loss for _, loss in points], "loss", marks, smooth=True)
