"""`holdfast status [RUN]`: what is running where, how far each run is, and what happened to it last."""

from __future__ import annotations

import argparse
import os
import platform
import time
from pathlib import Path

from holdfast.core.errors import DONE, USAGE, Stop
from holdfast.core.files import Json, read_json
from holdfast.core.run.folder import RunFolder
from holdfast.core.units import counted
from holdfast.mind.summarise import incidents
from holdfast.ui.words import shown
from holdfast.world.standing import Standing, look

EXAMPLE = "holdfast status runs/quickstart"
RUNS = Path("runs")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("place", type=Path, nargs="?", metavar="RUN", help="a run folder, or a folder of runs (default: runs)")
    parser.add_argument("--json", action="store_true", help="print {runs: [...]}")


def run(arguments: argparse.Namespace) -> tuple[int, Json]:
    """Exit code 0 whatever the runs' states are, 2 when RUN is no run."""
    place = (arguments.place or RUNS).resolve()
    runs = [RunFolder(place)] if is_run(place) else runs_in(place)
    if not runs and arguments.place:
        raise _no_run(place)
    found = [entry(look(folder)) for folder in runs]
    if not arguments.json:
        width = max((len(shown(Path(one["run"]))) for one in found), default=0)
        print("\n".join(line for one in found for line in _lines(one, width)) or f"no runs in {place}")
    return DONE, {"runs": found}


def chosen(place: Path) -> RunFolder:
    """The run folder a user named. Raises Stop(2) when it is none."""
    if not is_run(place.resolve()):
        raise _no_run(place.resolve())
    return RunFolder(place.resolve())


def _no_run(place: Path) -> Stop:
    try:
        why = ", and no run lies in it" if list(place.iterdir()) else ": it is empty"
    except OSError as error:
        why = f": {error.strerror}"
    text = f"{place} is no run folder{why}"
    named = RUNS.resolve() / place.name
    return Stop(USAGE, text, f"do you mean {shown(named)}?" if is_run(named) else "all runs under ./runs: holdfast status")


def is_run(place: Path) -> bool:
    """Whether a folder holds a run, be it half prepared or damaged."""
    run = RunFolder(place)
    try:
        return run.begun() or run.steps_file.exists() or (run.config_file.exists() and run.timeline_file.exists())
    except OSError:  # another user's
        return False


def runs_in(place: Path) -> list[RunFolder]:
    """The run folders that lie in a folder, by name; none where there is no such folder, or it may not be read."""
    readable = place.is_dir() and os.access(place, os.R_OK | os.X_OK)
    return [RunFolder(folder) for folder in sorted(place.iterdir()) if is_run(folder)] if readable else []


def entry(standing: Standing) -> Json:
    """One run as `status --json` tells it (docs/verbs/status.md). None is unknown."""
    problems = list(standing.problems)
    if standing.unwritten:
        problems.append(f"the disk is full: the rows of {standing.unwritten} committed steps are kept in memory until there is room")
    try:
        incident = last_incident(standing.run)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        problems.append(f"its incidents cannot be read: {getattr(error, 'strerror', None) or error!r}")
        incident = None
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
        "last_step_time": standing.last_step.get("time"),
        "reason": standing.summary.get("reason"),
        "problems": problems,
    }


def last_incident(run: RunFolder) -> Json | None:
    """The newest incident, as the run's summary tells it."""
    for number in reversed(run.attempts()):
        wreck = read_json(run.attempt(number) / "wreck.json")
        if wreck and "decision" in wreck:
            return incidents(list(run.steps()), list(run.events()), [wreck])[0]
    return None


def _lines(one: Json, width: int) -> list[str]:
    """One run on a line, and what there is to say of it below."""
    of = "?" if one["steps"] is None else f"{one['steps']:,}"
    share = f" ({one['step'] / one['steps']:.0%})" if one["steps"] else ""
    attempts = counted(one["attempts"], "attempt")
    head = f"{shown(Path(one['run'])):<{width}}  {one['state']:<11}  step {one['step']:,} of {of}{share}, {attempts}"
    below = [*_living(one), *_incident(one), *_next(one), *(f"! {problem}" for problem in one["problems"])]
    return [head, *(f"  {line}" for line in below)]


def _living(one: Json) -> list[str]:
    if one["state"] != "running":
        return []
    where = ", ".join(f"{role} {pid}" for role, pid in one["pids"].items())
    if not where:
        where = "its processes cannot be seen from here" + ("" if one["host"] != platform.node() else ": another container, perhaps")
    ago = f"; last step {_ago(time.time() - one['last_step_time'])} ago" if one["last_step_time"] else ""
    lines = [f"{one['doing'] or 'running'} on {one['host'] or 'an unknown host'}: {where}{ago}"]
    if not one["supervised"]:
        lines.append("! no supervisor watches it: it trains on, but would not be started again; the same command adopts it")
    return lines


def _ago(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def _incident(one: Json) -> list[str]:
    incident = one["last_incident"]
    return [f"last incident: step {incident['step']}: {incident['evidence']}"] if incident else []


def _next(one: Json) -> list[str]:
    """Why an unfinished run is not running, and the command that goes on with it."""
    if one["state"] == "finished" or one["supervised"]:
        return []
    reason = [f"gave up: {one['reason']}"] if one["state"] == "gave_up" and one["reason"] else []
    if not one["command"]:
        return reason
    where = f"cd {one['folder']} && " if one["folder"] and one["folder"] != str(Path.cwd()) else ""
    return [*reason, f"goes on with: {where}{one['command']}"]
