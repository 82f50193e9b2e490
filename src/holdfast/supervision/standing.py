"""Where a run stands, from its files, locks and processes. Reads only: it mends nothing, and what it cannot read it names.

The locks decide whether a run lives, because they tell even of processes in another container or on another machine with the same
disk; pids are only what can be seen of them from here.
"""

from __future__ import annotations

import contextlib
import platform
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from holdfast.base.errors import WRONG_VALUES, wrong_value
from holdfast.base.files import Json, last_line, read_json
from holdfast.base.identity import alive
from holdfast.base.locks import taken
from holdfast.machine import clock
from holdfast.processes.attempt import Attempt
from holdfast.processes.process import living_pids
from holdfast.run.attempt import read_launch_spec
from holdfast.run.folder import RunFolder
from holdfast.run.snapshots.checkpoint import checkpoint_steps
from holdfast.run.timeline import read_timeline

TRYING = "trying the failed step with one change at a time"
State = Literal["running", "finished", "gave_up", "interrupted", "dead"]
T = TypeVar("T")


@dataclass(frozen=True)
class RunStanding:
    """`doing`: preparing, starting, training, evaluating or TRYING while the run lives. `supervised`: a `holdfast train` watches it.

    `last_step`: the newest row; `unwritten`: how many committed steps came after it, while the disk is full.
    `holder`: who supervises or did so last. `problems`: what of the folder is damaged, or cannot be read now.
    `attempts`: None where they cannot be read.
    """

    run: RunFolder
    state: State
    doing: str | None
    last_step: Json
    unwritten: int
    steps: int | None
    attempt: Attempt | None
    attempts: int | None
    supervised: bool
    holder: Json
    pids: dict[str, int]
    summary: Json
    problems: tuple[str, ...]

    @property
    def step(self) -> int:
        """The last committed step, 0 before the first."""
        step: int = self.last_step.get("step", 0)
        return step + self.unwritten

    @property
    def unread(self) -> list[str]:
        """What of the folder says how the run ended, and cannot be read now: nothing is known of its end then."""
        return [problem for problem in self.problems if problem.startswith(("summary.json cannot be read", "attempts cannot be read"))]

    @property
    def elsewhere(self) -> str | None:
        """The other machine that the run's supervisor is or was on; None when it is this one, or unknown."""
        host = self.holder.get("host")
        return None if host in (None, platform.node()) else str(host)


def lives(run: RunFolder) -> bool:
    """True if a supervisor or a trainer works on the run. Raises OSError when its locks cannot be read."""
    return taken(run.supervisor_lock) or taken(run.trainer_lock)


def look(run: RunFolder) -> RunStanding:
    """Return where the run stands. Whatever cannot be read is a problem in the answer, never an error."""
    found = _Reader()
    supervised = found.read("supervisor.lock", lambda: taken(run.supervisor_lock), False)
    training = found.read("trainer.lock", lambda: taken(run.trainer_lock), False)
    holder = found.json(run.supervisor_lock, may_be_empty=True)
    holder = holder | {"command": _plain(holder.get("command"))}
    nothing: list[int] = []
    attempts = found.read("attempts", run.attempts, nothing)
    attempt = Attempt(attempts[-1], run.attempt(attempts[-1]), None) if attempts else None
    summary = found.json(run.summary_file)
    if any(problem.startswith(f"{run.summary_file.name} cannot be read") for problem in found.problems):
        summary = found.read("events.jsonl", lambda: _told(run), {})
    result = found.json(attempt.folder / "result.json") if attempt else {}
    doing, unwritten = None, 0
    pids: dict[str, int] = {}
    if supervised or training:
        doing = found.read("the trainer's pulse", lambda: _doing(run, attempt, training, result), None)
        unwritten = found.read("the trainer's memory file", attempt.unwritten, 0) if training and attempt else 0
        pids = found.read("pids", lambda: _pids(run, holder, attempt), pids)
    return RunStanding(
        run=run,
        state="running" if supervised or training else _ended(summary, result, holder),
        doing=doing,
        last_step=found.read("steps.jsonl", lambda: _last_row(run), {}) or _newest_state(found, run),
        unwritten=unwritten,
        steps=found.read("timeline.jsonl", lambda: _steps(run), None),
        attempt=attempt,
        attempts=None if any(problem.startswith("attempts cannot be read") for problem in found.problems) else len(attempts),
        supervised=supervised,
        holder=holder,
        pids=pids,
        summary=summary,
        problems=(*found.problems, *_missing(run, attempts)),
    )


class _Reader:
    """Reads what may be damaged, and notes what was."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def read(self, name: str, read: Callable[[], T], instead: T) -> T:
        try:
            return read()
        except (OSError, *WRONG_VALUES) as error:
            self.problems.append(wrong_value(name, error))
            return instead

    def json(self, path: Path, may_be_empty: bool = False) -> Json:
        """Read the object in a file; an empty one where there is no such file, and where it is damaged, which is a problem."""
        known = len(self.problems)
        value = self.read(path.name, lambda: read_json(path), None)
        if value is None and len(self.problems) == known and path.exists() and not (may_be_empty and path.is_file()):
            why = "is damaged: it holds no JSON object" if path.is_file() else "cannot be read: it is not a file"
            self.problems.append(f"{path.name} {why}")
        return value or {}


def _ended(summary: Json, result: Json, holder: Json) -> State:
    """Return the state of a run in which nobody works.

    A trainer that was asked to stop says so even when no supervisor was left to note it; a supervisor that was stopped while it
    prepared the run has nothing to sum up, and says so in its lock file.
    """
    if not summary and (result.get("kind") == "interrupted" or holder.get("interrupted") is True):
        return "interrupted"
    known: dict[str, State] = {"finished": "finished", "gave_up": "gave_up", "interrupted": "interrupted"}
    return known.get(str(summary.get("status")), "dead")


def _doing(run: RunFolder, attempt: Attempt | None, training: bool, result: Json) -> str:
    if run.command_file.exists():
        return "running its command"
    if not run.config_file.exists():
        return "preparing"
    if training and attempt is not None:
        phase = (attempt.pulse() or {}).get("phase", "rehearsal")
        return {"rehearsal": "starting", "evaluate": "evaluating"}.get(phase, "training")
    if result.get("kind") == "finished":
        return "evaluating"
    return TRYING if trials_of_now(run) else "starting"


def trials_of_now(run: RunFolder) -> list[Path]:
    """Return the folders of the trials that began since the newest attempt did, oldest first."""
    newest = run.newest_attempt()
    spec = read_launch_spec(newest) if newest else None
    since = clock.in_calendar(spec.started, spec.facts.get("clock") or "") if spec and spec.started else 0.0  # as times of files are
    found = []
    for folder in sorted(run.trials.glob("[0-9]*")):
        with contextlib.suppress(FileNotFoundError):
            found += [folder] if (folder / "request.json").stat().st_mtime >= since else []
    return found


def _pids(run: RunFolder, holder: Json, attempt: Attempt | None) -> dict[str, int]:
    named: dict[str, Any] = {"supervisor": holder.get("identity"), **(read_json(run.standby_pids) or {})}
    if attempt is not None:
        named["writer"] = (read_json(attempt.folder / "writer.json") or {}).get("identity")
    return {role: identity["pid"] for role, identity in named.items() if alive(identity)} | (living_pids(attempt) if attempt else {})


def _last_row(run: RunFolder) -> Json:
    row = (last_line(run.progress_file) if run.command_file.exists() else run.last_step()) or {}
    if row and not isinstance(row["step"], int):
        raise ValueError(f"step {row['step']!r}")
    return row


def _told(run: RunFolder) -> Json:
    """Return how the run ended by its events, as the summary would: an empty object where none says so, or it went on."""
    ends = [event["event"] for event in run.events() if event["event"] in ("finished", "gave_up", "attempt_started")]
    return {"status": ends[-1]} if ends and ends[-1] != "attempt_started" else {}


def _newest_state(found: _Reader, run: RunFolder) -> Json:
    """Return the step of the newest checkpoint, for a run whose rows are lost or cannot be read; empty where there is none."""
    nothing: list[int] = []
    steps = [] if run.command_file.exists() else found.read("checkpoints", lambda: checkpoint_steps(run), nothing)
    return {"step": steps[-1]} if steps else {}


def _plain(command: object) -> str | None:
    """Return a command as a supervisor notes it; None for one that a shell would take for more, which no supervisor wrote."""
    try:
        words = shlex.split(str(command))
    except ValueError:
        return None
    return str(command) if words[:1] == ["holdfast"] and shlex.join(words) == command else None


def _steps(run: RunFolder) -> int | None:
    """Return how many steps the run is to have; None before that is planned."""
    if run.command_file.exists():
        total = (last_line(run.progress_file) or {}).get("total")
        return total if isinstance(total, int) else None
    planned = [entry.settings["steps"] for entry in read_timeline(run.timeline_file) if "steps" in entry.settings]
    return int(planned[-1]) if planned else None


def _missing(run: RunFolder, attempts: list[int]) -> list[str]:
    """Return the missing files without which a run cannot go on. Before the config is written, it is only being prepared."""
    if run.command_file.exists():
        return []
    wanted = ["run.json", "timeline.jsonl", "plan.json"] if run.config_file.exists() else ["config.yaml"] if attempts else []
    return [f"{name} is missing" for name in wanted if not (run.path / name).exists()]
