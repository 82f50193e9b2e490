"""`holdfast plan CONFIG`: what a run needs before there is a weight or a card: does it fit, how, what instead. Changes nothing."""

from __future__ import annotations

import argparse
import math
import re
import shlex
import sys
from pathlib import Path

from holdfast.base.errors import BLOCKED, DONE, USAGE, Stop
from holdfast.base.files import Json
from holdfast.base.units import LEAST_MEMORY, parse_bytes, with_unit
from holdfast.book.graphics_cards import named_card
from holdfast.checkup.examine import blocked_by_versions
from holdfast.checkup.recorded_machine import recorded
from holdfast.config.config import Config
from holdfast.config.load import load_config, missing_rows
from holdfast.config.rows_elsewhere import with_rows_here
from holdfast.machine.probes import kept_probes
from holdfast.machine.read import read_machine
from holdfast.machine.sound_facts import sound_facts
from holdfast.planning.memory.trained_size import what_learns
from holdfast.planning.plan_table import plan_table
from holdfast.planning.planning import plan_run, with_card
from holdfast.planning.workload import NO_ROW
from holdfast.report.pages import write_in_folder
from holdfast.report.plan.lines import PlanView
from holdfast.report.plan.page import plan_page
from holdfast.run.plan import Plan, Seconds
from holdfast.supervision.preparation.throwaway import check_command

EXAMPLE = "holdfast plan my-run.yaml --card 'RTX 4090' adapter.r=32"
WORK = "planning the run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", nargs="?", type=Path, metavar="CONFIG", help="the run's YAML file; its model may be a config.json alone")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="change single keys, as in train")
    parser.add_argument("--memory", metavar="SIZE", help="plan for this much memory, for example 32GiB, in place of the device's")
    parser.add_argument("--card", metavar="NAME", action="append", help="plan for a card that is not here, for example 'RTX 4090'")
    parser.add_argument("--machine", type=Path, metavar="FILE", help="plan for a recorded machine; this one is not examined")
    parser.add_argument("--why", type=Path, metavar="FILE.html", help="write a page that shows where each byte goes over a step")
    parser.add_argument("--table", nargs="+", metavar="MODEL", help="what fits cards of 8 to 141 GB, for each model, without a config")
    parser.add_argument(
        "--price", type=float, metavar="PER_HOUR", help="price of an hour of the machine; the plan then gives the cost of the run"
    )
    parser.add_argument("--json", action="store_true", help="the plan as JSON")


def run(arguments: argparse.Namespace) -> tuple[int, Json]:
    """Exit codes: 0 it fits, or nobody knows; 1 it does not fit, or a library is of a version that no run takes."""
    view = PlanView(to_stderr=arguments.json)
    if arguments.table:
        if arguments.config:
            raise Stop(USAGE, "--table takes models, and no config", "holdfast plan --table MODEL ...")
        answer = plan_table(arguments.table)
        view.table(answer)
        return DONE, answer
    if arguments.config is None:
        raise Stop(USAGE, "there is no config to plan for", "holdfast plan CONFIG, or holdfast plan --table MODEL ...")
    config = _with_rows(load_config(arguments.config, arguments.overrides, need_rows=False))
    limit = _size(arguments.memory)
    if arguments.price is not None and not 0 <= arguments.price < math.inf:
        raise Stop(USAGE, f"--price {arguments.price} is no price of an hour", "for example --price 1.99")
    machine = _machine(arguments)
    if limit and arguments.card and limit > machine["gpus"][0]["memory_bytes"]:
        card = machine["gpus"][0]
        text = f"--memory {arguments.memory} is more than {card['name']} has: {card['memory_bytes'] / 2**30:.0f} GiB"
        raise Stop(USAGE, text, "leave --memory out, or give less")
    here = not (arguments.card or arguments.machine)
    probes = kept_probes(machine, Path.cwd()) if here else None
    blocked = [] if arguments.card else blocked_by_versions(machine)
    told = [f"train stops before it begins: {finding.message}; {finding.fix}" for finding in blocked]
    try:
        planned = plan_run(config, machine, limit, curve=arguments.why is not None, probes=probes)
    except Stop as stop:
        raise Stop(stop.code, "\n".join([stop.message, *told]), stop.hint, stop.answer) from None
    plan = planned.plan.model_copy(update={"reasons": (*planned.plan.reasons, *told)})
    learns = what_learns(plan, config, planned.model) if plan.learns else ""
    view.plan(plan, planned.demand, learns, arguments.card[0] if arguments.card else None, arguments.price)
    view.next(_next(arguments, config, plan, bool(blocked)))
    if arguments.why:
        write_in_folder(
            arguments.why, plan_page(config, planned.model.folder.name, plan, planned.demand), "choose another place with --why FILE.html"
        )
        view.saved(arguments.why)
    cost = {"price": _cost(plan.seconds, arguments.price)} if arguments.price is not None else {}
    return BLOCKED if plan.fits is False or blocked else DONE, plan.model_dump(mode="json") | cost


def _next(arguments: argparse.Namespace, config: Config, plan: Plan, blocked: bool) -> str:
    """Return what comes next: rows, without which no run begins; a check of the run; or the quickest change by which it fits."""
    if lacking := missing_rows(config):
        return f"correct data.files in {arguments.config}, or put the rows there ({'; '.join(lacking)}); then holdfast data check ROWS"
    if any(NO_ROW in reason for reason in plan.reasons):
        return check_command(config, written=arguments.config)
    words, here = shlex.join([str(arguments.config), *arguments.overrides]), not (arguments.card or arguments.machine or arguments.memory)
    if blocked:
        return f"holdfast doctor {words}"
    if plan.fits is not False:
        return f"holdfast check {words}; holdfast train {words}" + ("" if here else ", on that machine")
    fitting = [other for other in plan.alternatives if other.fits and re.fullmatch(r"\S+=\S+( \S+=\S+)*", other.change)]
    quickest = min(fitting, key=lambda other: other.slower or 1.0, default=None)
    if quickest is None:
        return "docs/how-to/low-memory.md, or a smaller model"
    where = shlex.join([word for name in ("card", "machine", "memory") for word in _option(arguments, name)])
    return f"holdfast plan {words} {quickest.change}{where and f' {where}'}; what helps goes into {arguments.config}"


def _option(arguments: argparse.Namespace, name: str) -> list[str]:
    value = getattr(arguments, name)
    return [f"--{name}", str(value[0] if isinstance(value, list) else value)] if value else []


def _with_rows(config: Config) -> Config:
    """Fetch rows that are on the hub or at an address, where they can be had; else say why, and return the config as it is."""
    try:
        return with_rows_here(config)
    except Stop as stop:
        print(f"holdfast: planned without the rows: {stop}", file=sys.stderr)
        return config


def _cost(seconds: Seconds | None, per_hour: float) -> Json | None:
    """Return {low, likely, high} in the currency of the price; None where the time is unknown."""
    return None if seconds is None else {name: round(value * per_hour / 3600, 4) for name, value in seconds.model_dump().items()}


def _size(text: str | None) -> int | None:
    """Parse --memory to bytes. Raises Stop(2)."""
    if text is None:
        return None
    try:
        size = int(parse_bytes(text))
    except ValueError as error:
        meant = str(error).partition("; did you mean ")[2]
        hint = f"did you mean {meant}" if meant else "write a number and a unit, for example --memory 32GiB or 24GB"
        raise Stop(USAGE, f"--memory {text} is not a size", hint) from None
    if size < LEAST_MEMORY:
        meant = with_unit(text)
        hint = f"did you mean --memory {meant}?" if meant else "for example --memory 32GiB"
        raise Stop(USAGE, f"--memory {text} is {size:,} bytes, which holds no model", hint)
    return size


def _machine(arguments: argparse.Namespace) -> Json:
    """Return the machine to plan for. Raises Stop(2)."""
    cards = list(dict.fromkeys(arguments.card or []))
    if arguments.machine and cards:
        raise Stop(USAGE, "--machine and --card both say what to plan for", "give one of them")
    if len(cards) > 1:
        raise Stop(USAGE, f"--card is given {len(cards)} times: {', '.join(cards)}", "a run uses one card; plan for each of them alone")
    if arguments.machine:
        return sound_facts(recorded(arguments.machine))
    here = read_machine(Path.cwd(), ask_torch=not cards)
    return with_card(here, named_card(cards[0])) if cards else here
