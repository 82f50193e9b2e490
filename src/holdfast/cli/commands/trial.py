"""`holdfast trial RUN --step K`: replay one step of a run in a fresh process, as it was or with one thing changed."""

from __future__ import annotations

import argparse
from pathlib import Path

import yaml

from holdfast.base.disk import has_room
from holdfast.base.errors import BLOCKED, DONE, GAVE_UP, USAGE, Stop, reading
from holdfast.base.file_errors import file_error_in
from holdfast.base.files import Json
from holdfast.config.settings import PartialSettings, Settings, checked
from holdfast.config.yaml_tree import in_one_line, value_of
from holdfast.experiments.replay import START_S, TrialChange, replay
from holdfast.processes.ending import Stuck
from holdfast.processes.hang_timeout import TrainerHangTimeout
from holdfast.run.base_model import refuse_changed
from holdfast.run.folder import RunFolder
from holdfast.run.snapshots.memory_places import SHARED_MEMORY, sweep
from holdfast.run.timeline import newest_settings, read_timeline
from holdfast.supervision.evidence import last_text
from holdfast.supervision.launch import child_environment, trainer_launch
from holdfast.terminal.run_view import Terminal

EXAMPLE = "holdfast trial runs/quickstart --step 12 --set attention=eager"
# which samples a step has and what it runs in is --samples' and --env's to say
_CHANGEABLE = Settings.model_fields.keys() - {"steps", "samples", "behind", "patience_from", "quarantine", "env", "memory_limit_bytes"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_folder", type=Path, metavar="RUN", help="a run folder")
    parser.add_argument("--step", type=int, required=True, metavar="K", help="the step to replay, from the state before it")
    parser.add_argument("--samples", metavar="N,N,..", help="only these samples of the step (numbers as in steps.jsonl)")
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="key=value", help=f"one of {_listed()}")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="an environment variable for the trial")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")


def run(arguments: argparse.Namespace) -> tuple[int, Json]:
    """Exit codes: 0 the step went through and is finite, 1 it did not, 3 the trial cannot be ended."""
    sweep(SHARED_MEMORY)
    folder = RunFolder(arguments.run_folder.resolve()).existing()
    folder.refuse_foreign()
    refuse_changed(folder, folder.config().model)
    with reading(folder.path):
        last = newest_settings(read_timeline(folder.timeline_file)).steps
    if not 1 <= arguments.step <= last:
        raise Stop(USAGE, f"step {arguments.step}: the run has steps 1 to {last}", "give one of them with --step")
    samples = _samples(arguments.samples)
    row = next((row for row in folder.steps() if row["step"] == arguments.step), None)
    if row and (foreign := sorted(set(samples) - set(row["samples"]))):
        listed = ",".join(map(str, row["samples"]))
        raise Stop(USAGE, f"--samples: {', '.join(map(str, foreign))} not in step {arguments.step}", f"its samples are {listed}")
    change = TrialChange(samples, _settings(arguments.settings), _environment(arguments.env), deterministic=True)
    environment = child_environment(trainer_launch(folder).env)
    newest, floor_s = max(folder.attempts(), default=1), folder.config().run.hang_s
    deadline_s = max(START_S, TrainerHangTimeout(folder, newest, floor_s).limit_s())
    try:
        outcome = replay(folder, arguments.step, change, environment, deadline_s)
    except Stuck as stuck:
        raise Stop(GAVE_UP, str(stuck), "restart the machine, or at least the driver") from None
    if outcome["ending"] != "finished" and not has_room(folder.path):
        text = f"the disk of {folder.path} is full: the trial could not be written ({outcome['ending']}), which says nothing about the step"
        raise Stop(BLOCKED, text, "make room, then repeat the command")
    if outcome["ending"] != "finished" and (told := file_error_in(last_text(Path(outcome["folder"], "output.log")))):
        raise Stop(told.code, f"{told.message}, which says nothing about the step", told.hint, outcome)
    terminal = Terminal(to_stderr=arguments.json, quiet=False)
    terminal.say(_sentence(outcome) + ("" if change.changes() else _against_the_run(outcome, row)))
    return (DONE if outcome["finite"] else BLOCKED), outcome


def _samples(text: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise Stop(USAGE, f"--samples {text}: numbers are needed", "for example --samples 17,204") from None


def _settings(pairs: list[str]) -> PartialSettings:
    settings: PartialSettings = {}
    for pair in pairs:
        key, sign, text = pair.partition("=")
        key = {"precision": "dtype"}.get(key.removeprefix("train."), key.removeprefix("train."))
        if not sign or (key not in _CHANGEABLE and key in Settings.model_fields):
            raise Stop(USAGE, f"--set {pair}: a trial can change {_listed()}", "for example --set attention=eager")
        try:
            settings |= checked({key: value_of(text)})
        except (ValueError, yaml.YAMLError) as error:
            raise Stop(USAGE, f"--set {pair}: {in_one_line(error)}", "`holdfast trial --help` lists the settings") from None
    return settings


def _listed() -> str:
    return ", ".join(name for name in Settings.model_fields if name in _CHANGEABLE)


def _environment(pairs: list[str]) -> dict[str, str | None]:
    wrong = [pair for pair in pairs if "=" not in pair]
    if wrong:
        raise Stop(USAGE, f"--env {wrong[0]}: write NAME=VALUE")
    return {name: value for name, _, value in (pair.partition("=") for pair in pairs)}


def _against_the_run(outcome: Json, row: Json | None) -> str:
    """Say how a step replayed as it was compares with the run's own row of it."""
    if row is None or row["loss"] is None or outcome["loss"] is None:
        return ""
    if (outcome["loss"], outcome["grad_norm"]) == (row["loss"], row["grad_norm"]):
        return "; the same as in the run"
    return f"; the run had loss {row['loss']:.6f}, gradient norm {row['grad_norm']:.6f}"


def _sentence(outcome: Json) -> str:
    if outcome["ending"] != "finished":
        return f"step {outcome['step']}: {outcome['ending']}; log: {outcome['folder']}/output.log"
    loss, norm = outcome["loss"], outcome["grad_norm"]
    numbers = f"loss {loss:.6f}, gradient norm {norm:.6f}" if outcome["finite"] else "loss or gradient norm not finite"
    return f"step {outcome['step']}, {len(outcome['samples'])} samples: {numbers}; gradients {outcome['gradients_sha256'][:16]}"
