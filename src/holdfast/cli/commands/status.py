"""`holdfast status [RUN]`: what is running where, how far each run is, and what happened to it last."""

from __future__ import annotations

import argparse
import platform
import shlex
import time
from pathlib import Path

from holdfast.base.errors import DONE
from holdfast.base.files import Json
from holdfast.base.inert import brief, say
from holdfast.base.units import counted
from holdfast.learn.rounds import learned_in, standing_of
from holdfast.machine.readings.words import told
from holdfast.report.summarise import place_in_words
from holdfast.report.words import between, shown
from holdfast.run.folder import RunFolder, closed_in, is_run, runs_in
from holdfast.run.plan import Seconds
from holdfast.run.snapshots.memory_places import SHARED_MEMORY, abandoned
from holdfast.supervision.runs import RUNS, entry, no_run
from holdfast.supervision.standing import look

EXAMPLE = "holdfast status runs/quickstart"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("place", type=Path, nargs="?", metavar="RUN", help="a run folder, or a folder of runs (default: runs)")
    parser.add_argument(
        "--json",
        action="store_true",
        help="print {runs: [...], abandoned_snapshots: [...]}, with rounds also {learn: [...]}",
    )


def run(arguments: argparse.Namespace) -> tuple[int, Json]:
    """Exit code 0 whatever the runs' states are, 2 when RUN is no run."""
    place = (arguments.place or RUNS).resolve()
    runs = [RunFolder(place)] if is_run(place) else runs_in(place)
    closed = [] if runs and runs[0].path == place else closed_in(place)
    learned = [standing_of(folder) for folder in learned_in(place)]
    if not runs and not learned and not closed and arguments.place:
        raise no_run(place)
    found = [entry(look(folder)) for folder in runs]
    left = abandoned(SHARED_MEMORY)
    if not arguments.json:
        width = max((len(shown(Path(one["run"]))) for one in found), default=0)
        said = [line for one in found for line in _lines(one, width)] + [line for one in learned for line in _rounds(one)]
        said += [f"! {shown(folder)} may not be read by this user: what runs there are is not known" for folder in closed]
        say("\n".join(said) or f"no runs in {place}")
        if left:
            held = f"{counted(len(left), 'snapshot')} of removed runs, {sum(left.values()) / 2**20:,.1f} MiB"
            say(f"! {held} in {SHARED_MEMORY}: the next `holdfast train`, `trial` or `chat` removes them")
    answer: Json = {"runs": found, "abandoned_snapshots": [{"file": str(file), "bytes": size} for file, size in left.items()]}
    answer |= {"closed": [str(folder) for folder in closed]} if closed else {}
    return DONE, answer | ({"learn": learned} if learned else {})


def _rounds(one: Json) -> list[str]:
    """Describe the rounds of a policy of `holdfast learn`: the newest, the last verdict, the version in place."""
    last, promoted = one["last"], one["promoted"]
    doing = f"until it is {one['phase']}" if one["phase"] else "over"
    lines = [f"{shown(Path(one['folder']))}  learn {one['name']}: round {one['round']}, {doing}"]
    if last:
        end = "promoted" if last["promoted"] else "not promoted"
        lines.append(brief(f"  round {last['round']}: {last['verdict'].replace('_', ' ')}, {end}: {last['why']}"))
    if promoted:
        lines.append(
            f"  promoted last: version {promoted['version']} of round {promoted['round']}, adapter {promoted['adapter_sha256'][:12]}"
        )
    return lines + ([f"  ! {one['problem']}"] if "problem" in one else [])


def _lines(one: Json, width: int) -> list[str]:
    """Describe one run on a line, and what there is to say of it below."""
    of = "?" if one["steps"] is None else f"{one['steps']:,}"
    share = f" ({one['step'] / one['steps']:.0%})" if one["steps"] else ""
    attempts = "? attempts" if one["attempts"] is None else counted(one["attempts"], "attempt")
    head = f"{shown(Path(one['run'])):<{width}}  {one['state']:<11}  step {one['step']:,} of {of}{share}, {attempts}"
    place = [place_in_words(one["second_place"])] if one.get("second_place") else []
    below = [*_living(one), *_incident(one), *place, *_next(one), *(f"! {problem}" for problem in one["problems"])]
    return [head, *(f"  {line}" for line in below)]


def _living(one: Json) -> list[str]:
    if one["state"] != "running":
        return []
    where = ", ".join(f"{role} in process {pid}" for role, pid in one["pids"].items())
    if not where:
        where = "its processes cannot be seen from here" + ("" if one["host"] != platform.node() else ": another container, perhaps")
    ago = f"; last step {_ago(time.time() - one['last_step_time'])} ago" if one["last_step_time"] else ""
    left = f"; {between(Seconds(**one['seconds_left']))} left" if one["seconds_left"] else ""
    if one["doing"] == "evaluating" and one["step"] == one["steps"]:
        left = "; all steps are done, and what was made is evaluated: how long that takes is not known"
    lines = [f"{one['doing'] or 'running'} on {one['host'] or 'an unknown host'}: {where}{ago}{left}"]
    lines += told(one["readings"]) if one["readings"] else []
    return lines + [f"! {sign['says']}" for sign in one["signs"]]


def _ago(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def _incident(one: Json) -> list[str]:
    incident = one["last_incident"]
    return [brief(f"last incident: step {incident['step']}: {incident['evidence']}")] if incident else []


def _next(one: Json) -> list[str]:
    """Return why an unfinished run is not running, and the command that goes on with it."""
    if one["state"] == "finished" or one["supervised"]:
        return []
    reason = [f"gave up: {one['reason']}"] if one["state"] == "gave_up" and one["reason"] else []
    if not one["command"]:
        return reason
    where = f"cd {shlex.quote(one['folder'])} && " if one["folder"] and one["folder"] != str(Path.cwd()) else ""
    return [*reason, f"resume with: {where}{one['command']}"]
