"""`holdfast check CONFIG`: try what people tick by hand before a long run, each item with its number, in minutes. Trains no run.

Items: start, first, overfit, precision, order, resume, speed. Each is an experiment with the run's own model, rows and hardest shapes.
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from holdfast.base.errors import BLOCKED, DONE, USAGE, Stop
from holdfast.base.files import Json, read_json
from holdfast.base.units import counted
from holdfast.base_model.parts import PARTS
from holdfast.cli.laboratory import laboratory_of
from holdfast.config.config import Config
from holdfast.config.load import load_config
from holdfast.experiments.check.bench import Bench, Item
from holdfast.experiments.check.everything import ITEMS, announced, items
from holdfast.experiments.compare import OF_NO_SPEED
from holdfast.planning.past_runs import work_in
from holdfast.report.check_page import check_page
from holdfast.report.pages import write_page
from holdfast.run.folder import RunFolder
from holdfast.run.snapshots.memory_places import SHARED_MEMORY, sweep
from holdfast.supervision.preparation.lock import held
from holdfast.supervision.preparation.prepare import open_run
from holdfast.supervision.preparation.throwaway import throwaway
from holdfast.supervision.signals import StopSignals
from holdfast.terminal.run_view import Terminal

EXAMPLE = "holdfast check examples/quickstart.yaml --only start,overfit"
WORK = "preparing the run"
_MARKS = {"passed": "ok", "failed": "FAILED", "unknown": "?"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, metavar="CONFIG", help="the run's YAML file")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="change single keys, as in train")
    parser.add_argument("--only", metavar="ITEM,ITEM,..", help=f"some of {', '.join(ITEMS)} (default: all)")
    parser.add_argument("--json", action="store_true", help="print {items, start} on standard output, all else on standard error")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write what was found as a page")


def run(arguments: argparse.Namespace) -> tuple[int, Json]:
    """Exit codes: 0 nothing failed, 1 an item failed, 2 the config or the options are wrong, 3 an experiment cannot be ended."""
    only = _only(arguments.only)
    config = load_config(arguments.config, arguments.overrides)
    terminal = Terminal(to_stderr=arguments.json, quiet=False)
    sweep(SHARED_MEMORY)
    signals = StopSignals()  # SIGTERM ends the experiments, as Ctrl-C does
    signals.standing = "nothing was trained"
    found: list[Item] = []
    terminal.say(announced(only))
    with throwaway() as place:
        begun = _checked(arguments, config, place, only, found, terminal)
    answer: Json = {"items": [item.as_json() for item in found], "start": begun}
    if arguments.html:
        write_page(arguments.html, check_page(arguments.config.name, answer), answer)
    failed = [item.id for item in found if item.verdict == "failed"]
    terminal.say(_counted(found))
    terminal.say(f"next: {_next(failed, [str(arguments.config), *arguments.overrides])}")
    return (BLOCKED if failed else DONE), answer


def _only(text: str | None) -> list[str]:
    """Parse the items asked for, in their order. Raises Stop(2)."""
    wanted = [part.strip() for part in text.split(",")] if text is not None else list(ITEMS)
    if unknown := [name for name in wanted if name not in ITEMS]:
        raise Stop(USAGE, f"--only {text}: there is no item {', '.join(map(repr, unknown))}", f"some of {', '.join(ITEMS)}")
    return [name for name in ITEMS if name in wanted]


def _checked(arguments: argparse.Namespace, config: Config, place: Path, only: list[str], found: list[Item], terminal: Terminal) -> Json:
    """Prepare the run in `place` and try the items, which go into `found` one by one; return what `start` found."""
    with held(place) as (folder, _):
        try:
            config = open_run(folder, config, False, terminal)
        except Stop as stop:
            if stop.code != BLOCKED:
                raise
            _refused(stop, only, found, terminal)
            return nothing_known()
        with laboratory_of(folder, config, terminal) as lab:
            bench = Bench(lab, config, folder.plan(), str(arguments.config), read_json(folder.data_report_file) or {})
            bench.work = work_in(config, bench.plan)
            bench.last_run = _last_run(config, arguments.config)
            for item in items(bench, only):
                found.append(item)
                _tell(item, terminal)
        begun: Json = bench.facts.get("start") or nothing_known()
        return begun


def nothing_known() -> Json:
    """Return the `start` of a run that does not begin."""
    unknown = {"attention": None, "pad": None, "cudnn_attention": None, "blas": None}
    return unknown | {"dtype": {"frozen": None, "trained": None, "computed": None}, "learns": dict.fromkeys(PARTS)}


def _refused(stop: Stop, only: list[str], found: list[Item], terminal: Terminal) -> None:
    found.append(Item("start", "failed", {}, stop.message, stop.hint))
    found += [Item(name, "unknown", {}, "not tried: the run does not start") for name in only if name != "start"]
    for item in found:
        _tell(item, terminal)


def _tell(item: Item, terminal: Terminal) -> None:
    line = f"{item.id:9} {_MARKS[item.verdict]:6} {item.why}" + (f"\n{'':17}-> {item.next}" if item.next else "")
    (terminal.tell if item.verdict == "failed" else terminal.say)(line)


def _counted(found: list[Item]) -> str:
    """Return how many items passed, and which did not."""
    names = {mark: [item.id for item in found if item.verdict == mark] for mark in ("passed", "failed", "unknown")}
    rest = [f"{words}: {', '.join(names[mark])}" for mark, words in (("failed", "failed"), ("unknown", "unknown")) if names[mark]]
    return "; ".join([f"{len(names['passed'])} of {counted(len(found), 'item')} passed", *rest])


def _next(failed: list[str], given: list[str]) -> str:
    """Return the command that comes next: training, or, once what failed is mended, those items again."""
    words = shlex.join(given)
    return f"mend what stands behind ->, then holdfast check {words} --only {','.join(failed)}" if failed else f"holdfast train {words}"


def _last_run(config: Config, file: Path) -> Json | None:
    """Read the speed of this config's run in its default folder; None where there is none. alike: whether it computed the same."""
    folder = RunFolder((Path("runs") / (config.run.name or file.stem)).resolve())
    if not folder.steps_file.exists():
        return None
    rows = [row for row in folder.newest_steps() if row.get("tokens") and row.get("seconds")]
    seconds = sum(row["seconds"] for row in rows)
    if not seconds:
        return None
    rate = round(sum(row["tokens"] for row in rows) / seconds, 1)
    return {"run": folder.path.name, "tokens_per_second": rate, "alike": _computed(folder.config()) == _computed(config)}


def _computed(config: Config) -> Json:
    """Return the part of a config that the speed of a step follows from."""
    tree = config.model_dump(mode="json", include={"model", "adapter", "train", "preference"})
    return tree | {"train": {key: value for key, value in tree["train"].items() if key not in OF_NO_SPEED}}
