"""`holdfast drill [CONFIG | -- COMMAND]`: rehearse faults on this machine, and say which of them were survived."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

from holdfast.base.errors import BLOCKED, DONE, USAGE, Stop
from holdfast.base.files import Json, write_bytes, write_json
from holdfast.cli.parser import Parser
from holdfast.config.load import load_config, load_faults
from holdfast.report.drill_page import line, page
from holdfast.report.words import shown
from holdfast.supervision.drill.command import ROUGH, rehearse_command
from holdfast.supervision.drill.rehearsals import of_faults, quick, rehearsals
from holdfast.supervision.drill.training import of_config, own_config, rehearse
from holdfast.supervision.signals import StopSignals
from holdfast.terminal.run_view import Terminal

EXAMPLE = "holdfast drill --quick"
_QUICK_S = 180.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="the few that show most; none begins after 3 minutes (the default)")
    parser.add_argument("--full", action="store_true", help="all of them")
    parser.add_argument("--faults", type=Path, metavar="FILE", help="rehearse each fault of this file instead (docs/reference/faults.md)")
    parser.add_argument("--run", type=Path, metavar="DIR", help="folder for all of it (default: runs/drill, -2, ...)")
    parser.add_argument("--callback", action="store_true", help="for a COMMAND: run it with the callback")
    parser.add_argument("--json", action="store_true", help="print {faults: [...]} on standard output, all else on standard error")
    parser.add_argument(
        "config", type=Path, nargs="?", metavar="CONFIG", help="your config; or, after --, a short command of another trainer"
    )
    assert isinstance(parser, Parser)
    parser.behind_dashes = "command"


def run(arguments: argparse.Namespace) -> tuple[int, Json]:
    """Exit code 0 where all was survived, with the same result where that has to be; 1 where something was not."""
    terminal = Terminal(to_stderr=arguments.json, quiet=False)
    words = arguments.command[1:]
    if arguments.command and not words:
        raise Stop(USAGE, "no command is given behind the two dashes", "for example holdfast drill -- python train.py --max_steps 20")
    if words and (arguments.config or arguments.faults):
        other = arguments.config or "--faults"
        raise Stop(USAGE, f"{other} is for runs of holdfast's own, and a command is given", "leave one of the two out")
    folder = _folder(arguments.run)
    began = time.monotonic()
    until = float("inf") if arguments.full or arguments.faults else began + _QUICK_S
    rows: list[Json] = []
    signals = StopSignals()  # SIGTERM ends the rehearsal that runs, as Ctrl-C does
    signals.standing = f"what was rehearsed is in {shown(folder)}"
    try:
        rows.extend(_rows(arguments, words, folder, until, terminal))
    except KeyboardInterrupt:
        _write(folder, rows, f"interrupted after {len(rows)} rehearsals")
        raise
    bad = [row for row in rows if not row["survived"] or row["identical"] is False]
    missed = [row["name"] for row in rows if not row["struck"] and row not in bad]
    survived = sum(row["survived"] and row["struck"] for row in rows)
    told = f"{survived} of {len(rows)} survived in {time.monotonic() - began:.0f} s"
    if missed:
        told += f"; never struck, so not rehearsed: {', '.join(missed)}"
    if bad:
        told += f"; not survived, or with another result: {', '.join(row['name'] for row in bad)}"
    _write(folder, rows, told)
    terminal.say(f"{told}\nthe page: {shown(folder / 'drill.html')}")
    return (BLOCKED if bad else DONE), {"faults": rows, "survived": survived, "folder": str(folder)}


def _write(folder: Path, rows: list[Json], told: str) -> None:
    write_json(folder / "drill.json", {"faults": rows})
    write_bytes(folder / "drill.html", page(rows, told).encode())


def _rows(arguments: argparse.Namespace, words: list[str], folder: Path, until: float, terminal: Terminal) -> Iterator[Json]:
    def tell(row: Json) -> None:
        (terminal.say if row["survived"] and row["struck"] and row["identical"] is not False else terminal.tell)(line(row))

    if words:
        rough = ROUGH if arguments.full else tuple(one for one in ROUGH if one.quick)
        terminal.say(f"drill: {len(rough)} rehearsals of the command in {shown(folder)}, each a whole run of it")
        yield from rehearse_command(words, folder, rough, until, ["--callback"] if arguments.callback else [], tell)
        return
    everything = rehearsals()
    chosen = everything if arguments.full else quick(everything)
    if arguments.faults:
        chosen = of_faults([fault.model_dump(mode="json", exclude_unset=True) for fault in load_faults(arguments.faults)])
    config: Path | None = arguments.config
    if config is not None:
        data = load_config(config, []).data
        place = of_config(config.resolve(), [str(file) for file in data.files], folder, bool(data.held_out or data.held_out_files))
    else:
        place = own_config(folder)
    terminal.say(f"drill: {len(chosen)} rehearsals in {shown(folder)}, each a run of 10 steps")
    yield from rehearse(place, chosen, until, lambda: False, tell)


def _folder(given: Path | None) -> Path:
    """Return a new folder. Raises Stop(2) for one that holds something."""
    runs = Path("runs")
    names = [given] if given is not None else [runs / ("drill" if number == 1 else f"drill-{number}") for number in range(1, 10000)]
    for place in names:
        if not place.exists() or (given is not None and place.is_dir() and not any(place.iterdir())):
            place.mkdir(parents=True, exist_ok=True)
            return place.resolve()
    raise Stop(USAGE, f"{given} is there already", "give a new folder with --run DIR")
