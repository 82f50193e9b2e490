"""`holdfast init`: write a first config with the reason behind each line, from a few questions or from another trainer's file."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from holdfast.base.errors import BLOCKED, DONE, USAGE, Stop
from holdfast.base.file_errors import file_error
from holdfast.base.files import Json, write_json
from holdfast.base.inert import say
from holdfast.base.units import gib
from holdfast.book.graphics_cards import named_card
from holdfast.cli.outputs import at_terminal
from holdfast.config.foreign.keys import SAME
from holdfast.config.load import load_config
from holdfast.data.judge.rules import asked_fields
from holdfast.machine.read import read_machine
from holdfast.new_config.make import ConfigDraft, checked, from_answers, from_file
from holdfast.planning.planning import plan_run, with_card
from holdfast.report.pages import write_in_folder
from holdfast.report.words import between, shown
from holdfast.run.plan import Plan
from holdfast.terminal.working import working

EXAMPLE = "holdfast init --model ../models/Qwen2.5-0.5B --data rows.jsonl --goal 'answer like our support' --out my-run.yaml"
_QUESTIONS = (
    ("model", "Which model? A folder in Hugging Face layout, a hub name, or tiny to try", "tiny"),
    ("data", "Which rows? Files or patterns, separated by spaces", ""),
    ("goal", "What is it for? One sentence; words as quick, quality or memory are heard", ""),
    ("card", "For which card? Its name, or empty for this machine", ""),
    ("out", "Where should the config go?", "my-run.yaml"),
)
_FATES = {"carried": "carried", "changed": "changed", "not_carried": "not carried"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--from",
        dest="source",
        type=Path,
        metavar="FILE",
        help="translate a config, command line or script of Axolotl, LLaMA-Factory, TRL, transformers, Unsloth, ms-swift, Soup or "
        "torchtune; nothing of it is run",
    )
    parser.add_argument("--model", metavar="M", help="folder in Hugging Face layout, hub name, or tiny")
    parser.add_argument("--data", nargs="+", action="extend", default=[], metavar="FILES", help="row files, folders, or patterns in quotes")
    parser.add_argument(
        "--field", action="append", default=[], metavar="NAME=THEIRS", help="what the files call a field, e.g. output=reply; as data.fields"
    )
    parser.add_argument("--card", metavar="NAME", help="plan for this card, for example 'RTX 4090' (default: this machine)")
    parser.add_argument("--goal", default="", metavar="TEXT", help="what it is for, in a sentence; quick, quality and memory are heard")
    parser.add_argument("--out", type=Path, metavar="CONFIG", help="the config to write; nothing is overwritten")
    parser.add_argument("--json", action="store_true", help="print what became of each key as JSON")


def run(arguments: argparse.Namespace) -> tuple[int, Json]:
    """Exit codes: 0 written; 1 written, and its plan does not fit, or what theirs trains is not here and nothing is written."""
    if not arguments.source and not arguments.json and at_terminal():
        _ask(arguments)
    out = _place(arguments)
    card = named_card(arguments.card, "leave --card out; then holdfast plan CONFIG --memory 32GiB") if arguments.card else None
    data = [part for one in arguments.data for part in ([one] if Path(one).exists() else one.split(","))]
    fields = asked_fields(arguments.field)
    tell: Callable[[str], None] = (lambda text: None) if arguments.json else say
    tell(f"looking at {arguments.source or 'the rows of ' + ', '.join(data)}")
    with working("checking the rows", arguments.json):
        if arguments.source:
            made = from_file(arguments.source, data, arguments.model, arguments.goal, fields)
        else:
            made = from_answers(arguments.model, data, arguments.goal, fields)
    answer = _account(made, out)
    if made.refused:
        _tell_keys(made, arguments.json)
        command = f"holdfast run --callback -- {_command(arguments.source)}"
        raise Stop(
            BLOCKED,
            f"{arguments.source}: {made.refused[0]}; nothing is written",
            f"protect it as it is: {command}",
            answer | {"config": None},
        )
    config = checked(made)
    for file in made.files:
        tell(f"rows: {file.told()}")
    if made.fields:
        tell(f"fields: {', '.join(f'{ours} is {theirs}' for ours, theirs in made.fields)} (--field)")
    write_in_folder(out, made.text(), "choose another place with --out")
    tell("looking at the machine, and planning the run: some seconds, a minute or more for a large model")
    with working("planning the run", arguments.json):
        plan, why = _plan(out, card, config.task)
    _tell_keys(made, arguments.json)
    _tell(made, out, plan, why, arguments.json)
    answer |= {"plan": plan.model_dump(mode="json") if plan else None, "plan_unknown": why or None}
    return BLOCKED if plan and plan.fits is False else DONE, answer


def _ask(arguments: argparse.Namespace) -> None:
    """Put the questions that the command line has not answered. Ctrl-C ends it, nothing is written."""
    for name, question, otherwise in _QUESTIONS:
        if getattr(arguments, name):
            continue
        try:
            given = input(f"{question}{f' [{otherwise}]' if otherwise else ''}: ").strip() or otherwise
        except EOFError:
            given = otherwise
        value: Any = shlex.split(given) if name == "data" else Path(given) if name == "out" else given or None
        setattr(arguments, name, value if value or name != "goal" else "")


def _place(arguments: argparse.Namespace) -> Path:
    """Return where the config goes. Raises Stop(2) where something is missing or lies there already."""
    if not arguments.source and not arguments.data:
        text = "rows are needed, or another trainer's file"
        raise Stop(
            USAGE, text, "holdfast init --model M --data rows.jsonl --out my-run.yaml, or holdfast init --from THEIRS --out my-run.yaml"
        )
    if arguments.source and not arguments.source.exists():
        raise Stop(USAGE, f"--from {arguments.source}: no such file", f"the current folder is {Path.cwd()}")
    out: Path = arguments.out or Path("my-run.yaml")
    if out.exists():
        raise Stop(USAGE, f"{out} exists, and nothing is overwritten", "choose another name: --out OTHER.yaml")
    if out.suffix not in (".yaml", ".yml"):
        raise Stop(USAGE, f"--out {out}: a config is a YAML file", f"--out {out.with_suffix('.yaml')}")
    return out


def _command(source: Path | None) -> str:
    return f"python {source}" if source and source.suffix == ".py" else "COMMAND, as you start it today"


def _account(made: ConfigDraft, out: Path) -> Json:
    counts = {fate: sum(row["fate"] == fate for row in made.keys) for fate in _FATES}
    return {
        "keys": made.keys,
        "config": str(out),
        "program": made.program or None,
        "counts": counts,
        "values": made.sections(),
        "todo": made.todo,
        "rows": [asdict(file) for file in made.files],
    }


def _plan(out: Path, card: Json | None, task: str) -> tuple[Plan | None, str]:
    """Return the plan of the config, which is written beside it, or None and why there is none: the config is there all the same."""
    try:
        config = load_config(out, need_rows=False)
        if task == "tabular":
            return None, "the memory of a network on tables is measured when it begins"
        if config.model and not (Path(config.model).exists() or config.model == "tiny"):
            return None, f"{config.model} is not on this machine: `holdfast plan {out}` fetches it"
        machine = read_machine(Path.cwd(), ask_torch=card is None)
        plan = plan_run(config, with_card(machine, card) if card else machine).plan
        write_json(out.with_suffix(".plan.json"), plan.model_dump(mode="json"))
        return plan, ""
    except Stop as stop:
        return None, stop.message
    except OSError as error:
        told = file_error(error)
        return None, f"{told.message if told else error}; `holdfast plan {out}` makes one"


def _tell_keys(made: ConfigDraft, quiet: bool) -> None:
    """Print the account for people: keys of one fate and reason in one line."""
    if quiet or not made.keys:
        return
    for fate, words in _FATES.items():
        rows = [row for row in made.keys if row["fate"] == fate]
        if rows:
            say(f"{words} ({len(rows)}):")
        grouped: dict[tuple[str, str], list[str]] = {}
        for row in rows:
            arrow = f" -> {row['ours']}" if row["ours"] else ""
            grouped.setdefault((arrow if fate != "not_carried" else "", row["why"]), []).append(row["theirs"])
        for (arrow, why), names in grouped.items():
            say(f"  {', '.join(names)}{arrow}: {why}" if why != SAME else f"  {', '.join(names)}{arrow}")


def _tell(made: ConfigDraft, out: Path, plan: Plan | None, why: str, quiet: bool) -> None:
    if quiet:
        return
    say(f"{out} is written; the reason for each value stands beside it")
    for one in made.todo:
        say(f"! to do: {one}")
    if plan:
        fits = {True: "it fits", False: "IT DOES NOT FIT", None: "whether it fits is unknown"}[plan.fits]
        room = f" of {gib(plan.capacity_bytes)}" if plan.capacity_bytes else ""
        say(f"the plan ({out.with_suffix('.plan.json')}): {fits}, {gib(plan.peak_bytes)}{room}, {plan.precision}")
        if plan.seconds:
            say(f"wall time {between(plan.seconds)}")
        for other in plan.alternatives if plan.fits is False else ():
            say(f"  instead: {other.change}")
    else:
        say(f"no plan yet: {why}")
    say(f"next: holdfast doctor {shown(out)}; holdfast train {shown(out)}")
