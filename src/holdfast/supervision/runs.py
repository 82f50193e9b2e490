"""The runs of a folder: found, named by their user, told as `status --json` does. Starts nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from holdfast.base.errors import USAGE, WRONG_VALUES, Stop, wrong_value
from holdfast.base.files import Json
from holdfast.machine import clock
from holdfast.machine.readings.keep import newest, up_to_date
from holdfast.machine.readings.signs import signs
from holdfast.planning.time_left import judged, time_left
from holdfast.report.summarise import incidents, second_place
from holdfast.run.attempt import closed_attempts, read_launch_spec
from holdfast.run.folder import RunFolder, is_run, which_runs
from holdfast.run.plan import Seconds
from holdfast.supervision.standing import TRYING, RunStanding

RUNS = Path("runs")
T = TypeVar("T")


def chosen(place: Path) -> RunFolder:
    """Return the run folder a user named. Raises Stop(2) when it is none."""
    if not is_run(place.resolve()):
        raise no_run(place.resolve())
    return RunFolder(place.resolve())


def no_run(place: Path) -> Stop:
    try:
        why = ", and it holds no run" if list(place.iterdir()) else ": it is empty"
    except OSError as error:
        why = f": {error.strerror}"
    text = f"{place} is not a run folder{why}"
    return Stop(USAGE, text, which_runs(place))


def entry(standing: RunStanding, find_incident: Callable[[RunFolder], Json | None] | None = None) -> Json:
    """Return one run as `status --json` tells it (docs/reference/json.md). None is unknown.

    find_incident: what tells the newest one; by default `last_incident`, which reads every step.
    """
    problems = [*standing.problems, *_damaged_lines(standing.run)]
    if standing.unwritten:
        problems.append(f"the disk is full: the rows of {standing.unwritten} committed steps are kept in memory until there is room")
    incident = _asked(problems, "its incidents", lambda: (find_incident or last_incident)(standing.run))
    left = _asked(problems, "its pace", lambda: _left(standing))
    last_step_time = _asked(problems, "the time of its last step", lambda: _last_step_time(standing))
    place = _second_place(standing.run)
    readings = _asked(problems, "its readings", lambda: _readings(standing)) or []
    return {
        "run": str(standing.run.path),
        "state": standing.state,
        "step": standing.step,
        "steps": standing.steps,
        "attempts": standing.attempts,
        "last_incident": incident,
        "pids": standing.pids,
        "doing": standing.doing,
        "supervised": standing.supervised,
        "host": standing.holder.get("host"),
        "command": standing.holder.get("command"),
        "folder": standing.holder.get("folder"),
        "last_step_time": last_step_time,
        "reason": standing.summary.get("reason"),
        "seconds_left": left.model_dump() if left else None,
        "readings": readings[-1] if readings else None,
        "signs": [*_judged(readings), *_alone(standing)],
        "problems": problems,
        **({"second_place": place} if place else {}),
    }


def _asked(problems: list[str], name: str, ask: Callable[[], T]) -> T | None:
    """Return an answer; None where it cannot be had, which is noted as a problem."""
    try:
        return ask()
    except (OSError, Stop, *WRONG_VALUES) as error:
        problems.append(wrong_value(name, error))
        return None


def _last_step_time(standing: RunStanding) -> float | None:
    """Return when the last step was done, by the calendar as it is now."""
    told = standing.last_step.get("time")
    return told + _ahead(standing) if isinstance(told, int | float) else told


def _readings(standing: RunStanding) -> list[Json]:
    """Return the newest readings of a live run; none where nobody takes them any more, as without its supervisor."""
    return up_to_date(newest(standing.run.readings_file), time.time() - _ahead(standing)) if standing.state == "running" else []


def _ahead(standing: RunStanding) -> float:
    """Return the seconds that the calendar is ahead of a live run's clock: it may have been set while the run went on."""
    spec = read_launch_spec(standing.attempt.folder) if standing.state == "running" and standing.attempt else None
    return clock.in_calendar(0.0, spec.facts.get("clock") or "") if spec else 0.0


def _judged(readings: list[Json]) -> list[Json]:
    try:
        return signs(readings)
    except WRONG_VALUES:  # of another version, or damaged: nothing is known
        return []


def _alone(standing: RunStanding) -> list[Json]:
    if standing.state != "running" or standing.supervised:
        return []
    says = "no supervisor watches it: it trains on, but nothing would restart it; rerun the same command to adopt it"
    return [{"sign": "not_supervised", "gpu": None, "says": says}]


def _second_place(run: RunFolder) -> Json | None:
    try:
        return second_place(run.events())
    except (OSError, *WRONG_VALUES):  # told as the problem of its events
        return None


def _damaged_lines(run: RunFolder) -> list[str]:
    """Return what is wrong with lines of the events, which end no run."""
    try:
        lines = [event for event in run.events() if event["event"] == "journal_damaged"]
    except (OSError, *WRONG_VALUES) as error:
        return [wrong_value(run.events_file.name, error)]
    if not lines:
        return []
    more = f" and {len(lines) - 1} more" if len(lines) > 1 else ""
    return [f"{run.events_file.name}: line {lines[0]['line']}{more} cannot be read ({lines[0]['why']}); what stood there is not told"]


def _left(standing: RunStanding) -> Seconds | None:
    """Estimate how long a live run's steps still take; None where it is not live, its steps are done, or nobody can tell."""
    if standing.state != "running" or standing.steps is None or standing.step >= standing.steps or standing.doing == TRYING:
        return None
    return time_left(standing.run, standing.step, standing.steps, judged(standing.run))


def last_incident(run: RunFolder) -> Json | None:
    """Return the newest incident, as the run's summary tells it."""
    found = incidents(list(run.steps()), list(run.events()), [end.facts for _, end in closed_attempts(run)])
    return found[-1] if found else None
