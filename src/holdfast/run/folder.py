"""The run folder: where everything of a run lies, and its journals. Starts no process and knows no torch."""

from __future__ import annotations

import difflib
import errno
import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import Any

import orjson
import yaml
from pydantic import ValidationError

from holdfast.base.disk import flush_files, flush_tree
from holdfast.base.errors import BLOCKED, USAGE, Stop
from holdfast.base.file_errors import of_the_file
from holdfast.base.files import (
    DamagedLine,
    Json,
    append_line,
    cut_torn_line,
    fsync_folder,
    is_full,
    last_line,
    newest_lines,
    read_json,
    read_lines,
    write_bytes,
    write_json,
)
from holdfast.base.safe_open import read_small
from holdfast.base.units import counted, span
from holdfast.base.versions import __version__
from holdfast.config.config import Config
from holdfast.config.problems import problems_of, unknown_keys
from holdfast.config.yaml_tree import in_one_line, value_of
from holdfast.machine import clock
from holdfast.machine.readings.keep import FILE as READINGS
from holdfast.run.plan import RunPlan, read_plan

TRUSTED = "HOLDFAST_TRUST_RUN_FOLDERS"  # 1: also those of other users


@functools.lru_cache(maxsize=8)  # one command asks for it ten times and more
def _config_of(text: str) -> Config:
    return Config.model_validate(value_of(text))


def _why(error: yaml.YAMLError | ValueError | OSError) -> str:
    """Say what is wrong with a config that a run had once written."""
    if isinstance(error, ValidationError):
        return "; ".join(problems_of(error, Config))
    return f"it {error.strerror}" if isinstance(error, OSError) and error.strerror else in_one_line(error)


@dataclass(frozen=True)
class RunFolder:
    """Paths and journals of one run. Relative names never enter: `path` is absolute."""

    path: Path

    def refuse_foreign(self) -> None:
        """Raise Stop(1) where the folder is another user's: what it holds decides what is run here, and with which variables."""
        if self.path.stat().st_uid != os.geteuid() and os.environ.get(TRUSTED) != "1":
            text = f"{self.path} belongs to another user, and what lies in it decides what would be run as you"
            raise Stop(BLOCKED, text, f"copy it (cp -r) once you have looked into it; where owners mean nothing, {TRUSTED}=1 allows it")

    def existing(self) -> RunFolder:
        """Return this folder, when it holds a run. Raises Stop(2) when it does not."""
        if self.command_file.exists():
            text = f"{self.path} is the run of another program's command: it has no steps of ours to look into"
            raise Stop(USAGE, text, "`holdfast status` and `holdfast diagnose` tell what is known of it")
        if self.config_file.is_symlink() and not self.config_file.exists():
            text = f"{self.config_file} is a link that leads to no file"
            raise Stop(BLOCKED, text, f"put its own config there in its place, or {self.anew()}")
        if not self.config_file.exists() and self.begun():
            text = f"{self.path} was not prepared to its end: it has no steps, so there is nothing to look into yet"
            raise Stop(USAGE, text, "`holdfast status` tells the command that goes on with it")
        if not self.config_file.exists():
            why = "it has no config.yaml" if self.path.is_dir() else "it is a file" if self.path.exists() else "there is no such folder"
            config = self.path.suffix in (".yaml", ".yml") and self.path.is_file()
            hint = f"a config makes a run: holdfast train {_short(self.path)}; {which_runs(self.path)}" if config else which_runs(self.path)
            raise Stop(USAGE, f"{self.path} is not a run folder ({why})", hint)
        return self

    def begun(self) -> bool:
        """True if a run was ever begun here, perhaps not even prepared to the end."""
        return (self.path / "run.json").exists() or self.supervisor_lock.exists()

    @property
    def config_file(self) -> Path:
        return self.path / "config.yaml"

    @property
    def command_file(self) -> Path:
        """Of a run whose trainer is somebody else's command."""
        return self.path / "command.json"

    @property
    def progress_file(self) -> Path:
        """How far such a command was seen to be, and when."""
        return self.path / "progress.jsonl"

    @property
    def steps_file(self) -> Path:
        return self.path / "steps.jsonl"

    @property
    def events_file(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def readings_file(self) -> Path:
        """What the machine did meanwhile."""
        return self.path / READINGS

    @property
    def evaluations_file(self) -> Path:
        return self.path / "evaluations.jsonl"

    @property
    def timeline_file(self) -> Path:
        return self.path / "timeline.jsonl"

    @property
    def plan_file(self) -> Path:
        return self.path / "plan.json"

    @property
    def machine_file(self) -> Path:
        return self.path / "machine.json"

    @property
    def summary_file(self) -> Path:
        return self.path / "summary.json"

    @property
    def data_file(self) -> Path:
        return self.path / "data.safetensors"

    @property
    def token_shards(self) -> Path:
        """Where shards lie while the tokens are built, when the token cache cannot be used."""
        return self.path / "token-shards"

    @property
    def rejects_file(self) -> Path:
        return self.path / "rejects.jsonl"

    @property
    def data_report_file(self) -> Path:
        return self.path / "data.json"

    @property
    def evaluation_file(self) -> Path:
        return self.path / "evaluation.json"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def adapter(self) -> Path:
        return self.path / "adapter"

    @property
    def artifact(self) -> Path:
        """What the run has made: another name of its adapter's folder, of its model's or its network's."""
        return self.path / "artifact"

    @property
    def start_adapter(self) -> Path:
        """The run's own copy of the adapter it started from."""
        return self.path / "start_adapter.safetensors"

    @property
    def trials(self) -> Path:
        return self.path / "trials"

    @property
    def quarantine_file(self) -> Path:
        """Rows that are left out, with the evidence against each."""
        return self.path / "quarantine.jsonl"

    @property
    def rollbacks(self) -> Path:
        """What was taken back: the journals and checkpoints of steps that no longer count."""
        return self.path / "rollbacks"

    @property
    def standby_file(self) -> Path:
        """What the shim of a standby is to start."""
        return self.path / "standby.json"

    @property
    def standby_pids(self) -> Path:
        """Who waits, written by the shim of a standby."""
        return self.path / "standby_pids.json"

    @property
    def supervisor_lock(self) -> Path:
        return self.path / "supervisor.lock"

    @property
    def notify_file(self) -> Path:
        """Who is told of the run's turns (run.notify); for its user alone."""
        return self.path / "notify.json"

    @property
    def supervisor_log(self) -> Path:
        """What a supervisor without a terminal says."""
        return self.path / "supervisor.log"

    @property
    def trainer_lock(self) -> Path:
        return self.path / "trainer.lock"

    @property
    def writer_lock(self) -> Path:
        return self.path / "writer.lock"

    def made(self, folder: Path) -> Path:
        """Make a new numbered folder below the run's, flushed. Raises OSError, also where the run folder itself is gone."""
        folder.parent.mkdir(exist_ok=True)
        folder.mkdir()
        fsync_folder(folder.parent)
        fsync_folder(self.path)
        return folder

    def attempt(self, number: int) -> Path:
        return self.path / "attempts" / f"{number:03d}"

    def attempts(self) -> list[int]:
        """Return the numbers of all attempts that were written down, in order."""
        folder = self.path / "attempts"
        return sorted(int(entry.name) for entry in folder.iterdir() if entry.name.isdigit()) if folder.is_dir() else []

    def newest_attempt(self) -> Path | None:
        """Return the folder of the newest attempt; None where there was none."""
        number = max(self.attempts(), default=None)
        return None if number is None else self.attempt(number)

    def config(self) -> Config:
        """Read the run's config as resolved. Raises Stop(1) where its file is damaged, OSError where it may be whole."""
        try:
            return _config_of(read_small(self.config_file).decode())
        except (yaml.YAMLError, ValueError, OSError) as error:
            if isinstance(error, OSError):
                of_the_file(error)
            if newer := unknown_keys(error):
                text = f"{self.config_file} has keys that holdfast {__version__} does not know: {', '.join(newer)[:300]}"
                hint = f"go on with the version that wrote them, or {self.anew()}"
                raise Stop(BLOCKED, text, hint) from None
            hint = f"put its own config back there, or {self.anew()}"
            raise Stop(BLOCKED, f"{self.config_file} is damaged: {_why(error)[:300]}", hint) from None

    def write_config(self, config: Config) -> None:
        """Write the config without run.notify, whose addresses are secrets: reports, bundles and trackers show what stands here."""
        text = yaml.safe_dump(
            config.model_dump(mode="json", exclude={"faults": True, "run": {"notify"}}), sort_keys=False, allow_unicode=True
        )
        write_bytes(self.config_file, text.encode())

    def plan(self) -> RunPlan:
        """Read the run's plan. Raises Stop(1) where its file is missing or damaged."""
        plan = read_plan(self.plan_file)
        if plan is None:
            text = f"{self.plan_file} is missing or damaged"
            raise Stop(BLOCKED, text, f"put its own plan back there, or {self.anew()}")
        return plan

    def anew(self) -> str:
        """Return how a run that lacks something begins again, and the price: what its committed steps took, and would take again."""
        took, steps = sum(float(row.get("seconds") or 0.0) for row in self.steps()), self.committed()
        price = f": that computes {counted(steps, 'step')} once more, which took {span(took)}" if steps else ""
        return f"begin again with --run DIR, another folder{price}"

    def id(self) -> str:
        """Return the run's own name: drawn when the folder was made, in every checkpoint's manifest."""
        value = (read_json(self.path / "run.json") or {}).get("id")
        if not isinstance(value, str):
            raise ValueError(f"{self.path}/run.json is missing or damaged")
        return value

    def write_id(self, value: str) -> None:
        write_json(self.path / "run.json", {"id": value, "created": round(clock.now(), 3)})

    def event(self, kind: str, **facts: Any) -> Json:
        """Append one event. Raises OSError when the disk takes no more."""
        entry = {"time": round(clock.now(), 3), "event": kind, **facts}
        self.append(self.events_file, entry)
        return entry

    def append(self, file: Path, row: Json, durable: bool = False) -> None:
        """Append one line to a journal; durable: and wait until it is on the disk. Raises OSError when the disk takes no more."""
        if torn := append_line(file, row, durable):
            self.event("torn_line_cut", file=file.name, bytes=torn)

    def flush_journals(self) -> None:
        """Wait until the disk has what a checkpoint needs to be gone on from: the rows so far, timeline, plan and names. Raises OSError."""
        flush_files((self.steps_file, self.evaluations_file, self.timeline_file, self.plan_file, self.config_file, self.path / "run.json"))

    def flush_all(self, status: str) -> None:
        """Wait until all of the run is on the disk, before its status is told. Raises OSError where a finished one lost a file."""
        try:
            flush_tree(self.path)
        except OSError as error:
            if status == "finished" and (is_full(error) or error.errno in (errno.EIO, errno.ESTALE)):
                raise

    def heal_journals(self, tell: Callable[[str], None]) -> None:
        """Cut what follows the last whole line of each journal, and tell of that and of lines of the events that cannot be read."""
        for file in sorted(self.path.glob("*.jsonl")):
            if file != self.rejects_file and (torn := cut_torn_line(file)):
                self.event("torn_line_cut", file=file.name, bytes=torn)
                tell(f"{file} ended in the middle of a line, as a power cut leaves it: the {torn:,} bytes of that line were cut off")
        for event in self.events():
            if event["event"] == "journal_damaged":
                tell(f"{self.events_file}: line {event['line']} cannot be read ({event['why']}); it was left out")

    def rows(self, file: Path, damaged_line: DamagedLine | None = None) -> Iterator[Json]:
        """Yield the lines of a journal of the run; damaged_line: as `read_lines` has it."""
        return read_lines(file, damaged_line)

    def events(self) -> Iterator[Json]:
        """Yield all events; in place of a damaged line, one that says so: nothing of a run depends on what stood there."""
        newest = 0.0

        def damaged_line(number: int, why: str) -> Json:
            return {"time": newest, "event": "journal_damaged", "file": self.events_file.name, "line": number, "why": why}

        for row in self.rows(self.events_file, damaged_line):
            if isinstance(row.get("event"), str) and isinstance(row.get("time"), int | float):
                newest = row["time"]
                yield row

    def progress(self) -> Iterator[Json]:
        """Yield what was seen of somebody else's command: {time, attempt, step, total, source, loss}."""
        return self.rows(self.progress_file, lambda number, why: None)

    def steps(self) -> Iterator[Json]:
        return read_lines(self.steps_file)

    def newest_steps(self) -> list[Json]:
        """Return the last rows of steps.jsonl, as many as fit into a quarter of a mebibyte."""
        return newest_lines(self.steps_file, window=1 << 18)

    def committed(self) -> int:
        """Return the number of the last committed step; 0 before the first."""
        row = self.last_step()
        return row["step"] if row else 0

    def last_step(self) -> Json | None:
        """Return the row of the last committed step; None before the first."""
        return last_line(self.steps_file)


def differences(old: Config, new: Config) -> list[str]:
    """List what another config would change in a run: "key: old -> new". `run`, `faults` and the number of ranks do not count."""
    beside: Json = {"run": True, "faults": True, "train": {"ranks", "ranks_min"}}
    before, after = (flat(config.model_dump(mode="json", exclude=beside)) for config in (old, new))
    changed = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    return [f"{key}: {_as_written(before.get(key))} -> {_as_written(after.get(key))}" for key in changed]


def _as_written(value: object) -> str:
    """Format a value as a config would have it."""
    return "none" if value is None else orjson.dumps(value).decode()


def flat(tree: Json, prefix: str = "") -> Json:
    """Return a tree as dotted keys."""
    found: Json = {}
    for key, value in tree.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return found


def is_run(place: Path) -> bool:
    """True if a folder holds a run, be it half prepared or damaged."""
    run = RunFolder(place)
    try:
        return run.begun() or run.steps_file.exists() or (run.config_file.exists() and run.timeline_file.exists())
    except OSError:  # another user's
        return False


def runs_in(place: Path) -> list[RunFolder]:
    """Return the run folders that lie in a folder, by name; none where there is no such folder, or it may not be read."""
    readable = place.is_dir() and not _is_closed(place)
    return [RunFolder(folder) for folder in sorted(place.iterdir()) if is_run(folder)] if readable else []


def found_below(place: Path, pattern: str) -> list[Path]:
    """Return what a pattern finds below a folder, by name; nothing where this user may not look, which Path.glob ends at."""
    return [place / each for each in sorted(glob(pattern, root_dir=place))]  # noqa: PTH207


def runs_of_rounds(place: Path) -> list[tuple[str, RunFolder]]:
    """Return (name, run) of what `holdfast learn` has trained below a folder: of a policy, of policies, or `runs` itself."""
    patterns = [kind + end for kind in ("rounds/[0-9]*/", "withdrawn/*/[0-9]*/") for end in ("run", "experts/*/run")]
    found = [found_below(place, above + each) for above in ("", "*/", "learn/*/") for each in patterns]
    runs = sorted({run for some in found for run in some if is_run(run)})
    return [(_name_of_round(run), RunFolder(run)) for run in runs]


def _name_of_round(run: Path) -> str:
    """Return the policy's name and the round's number; behind it an expert's name: helper-0003-ssh."""
    above = next(at for at, folder in enumerate(run.parents) if folder.name in ("rounds", "withdrawn"))
    return "-".join(part for part in run.parts[-above - 3 : -1] if part not in ("rounds", "experts"))


def closed_in(place: Path) -> list[Path]:
    """Return the folders of which this user cannot see whether they are runs: the place itself, or those that lie in it."""
    folders = [place] if _is_closed(place) else sorted(place.iterdir()) if place.is_dir() else []
    return [folder for folder in folders if _is_closed(folder)]


def _is_closed(folder: Path) -> bool:
    return folder.is_dir() and not os.access(folder, os.R_OK | os.X_OK)


_TOLD = 5  # runs
_NONE = "run folders lie under runs/; `holdfast status` lists them"


def which_runs(place: Path) -> str:
    """Return the hint for a place that is no run: the run whose name is nearest, and the runs that are there."""
    for folder in dict.fromkeys((place.resolve().parent, Path("runs").resolve())):
        if names := [one.path.name for one in runs_in(folder)]:
            near = [place.name] if place.name in names else difflib.get_close_matches(place.name, names, 1, 0.6)
            here = _short(folder)
            told = ", ".join(names[:_TOLD]) + (f" and {len(names) - _TOLD} more" if len(names) > _TOLD else "")
            ask = "do" if place.name in names else "did"  # a name that is there, in another folder; or one that is spelled otherwise
            meant = f"{ask} you mean {here / near[0]}? " if near else ""
            return f"{meant}runs in {here}/: {told}; `holdfast status` says how each is"
    return _NONE


def _short(folder: Path) -> Path:
    return folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
