"""`holdfast compare RUN RUN...`: what differs between runs, what the difference most likely comes from, and what cannot be told."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from holdfast.base.errors import DONE, USAGE, Stop
from holdfast.base.files import Json
from holdfast.base.units import counted
from holdfast.experiments.compare import compared
from holdfast.report.pages import write_page
from holdfast.report.table_page import TableOf, in_words, table_page
from holdfast.run.folder import RunFolder
from holdfast.terminal.run_view import Terminal

EXAMPLE = "holdfast compare runs/first runs/second"
_SHOWN = 80  # characters of a value: four losses, a hash


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run folder; two or more")
    parser.add_argument("--json", action="store_true", help="print {differences, likely} on standard output, all else on standard error")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write what was found as a page")


def run(arguments: argparse.Namespace) -> tuple[int, Json]:
    """Exit codes: 0 compared, 2 a folder is no run, or there is only one."""
    paths = [path.resolve() for path in arguments.runs]
    if len(dict.fromkeys(paths)) < 2:
        raise Stop(USAGE, "there is one run to compare with nothing", "name two run folders or more: holdfast compare runs/a runs/b")
    names = _names(list(dict.fromkeys(paths)))
    commands = all(RunFolder(path).command_file.exists() for path in names)
    answer = compared(names)
    terminal = Terminal(to_stderr=arguments.json, quiet=False)
    if answer["differences"]:
        terminal.say(f"runs: {' | '.join(answer['runs'])}")
    for one in answer["differences"]:
        terminal.say(f"{one['what']}: {' | '.join(in_words(value)[:_SHOWN] for value in one['values'].values())}")
    for one in answer["likely"]:
        terminal.say(f"likely: {one['cause']} ({one['evidence']})")
    if band := answer["band"]:
        pairs = counted(band["pairs"], "pair")
        terminal.say(f"by the seed alone: end losses up to {band['loss']:.4f} apart ({pairs} of runs that differ by train.seed alone)")
    for what in answer["unknown"]:
        terminal.say(f"not known: {what}")
    if not answer["differences"] and not (commands and answer["unknown"]):
        terminal.say("nothing differs")
    if arguments.html:
        rows = [(one["what"], *one["values"].values()) for one in answer["differences"]]
        likely = [(one["cause"], one["evidence"]) for one in answer["likely"]]
        tables = [TableOf("Likely", ("cause", "evidence"), likely), TableOf("Differences", ("what", *answer["runs"]), rows)]
        told = f"not known: {'; '.join(answer['unknown']) or 'nothing'}"
        write_page(arguments.html, table_page("holdfast compare", told, tables), answer)
    return DONE, answer


def _names(paths: list[Path]) -> dict[Path, str]:
    """Choose a name for each folder: its last part, or the whole path where that is another's, too."""
    seen = Counter(path.name for path in paths)
    return {path: path.name if seen[path.name] == 1 else str(path) for path in paths}
