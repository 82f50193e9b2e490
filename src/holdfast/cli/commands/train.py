"""`holdfast train CONFIG`: check machine and data, plan, train under supervision, prove the result."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from holdfast.base.errors import DONE
from holdfast.base.files import Json, read_json
from holdfast.book import cards_of
from holdfast.config.config import Config
from holdfast.config.load import load_config, load_faults
from holdfast.planning.ladder import count_against
from holdfast.processes.process import end_strays
from holdfast.processes.rank_info import rank_info_of
from holdfast.report.words import short
from holdfast.run.folder import RunFolder
from holdfast.run.snapshots.memory_places import SHARED_MEMORY, sweep
from holdfast.supervision.companions.notified import refuse_missing_sendmail
from holdfast.supervision.companions.trackers import refuse_missing_trackers
from holdfast.supervision.detach import detach
from holdfast.supervision.preparation.faults import write_faults
from holdfast.supervision.preparation.lock import held
from holdfast.supervision.preparation.prepare import open_run
from holdfast.supervision.ranks.first import with_ranks
from holdfast.supervision.ranks.join import Follower
from holdfast.supervision.remote.elsewhere import fetched
from holdfast.supervision.signals import StopSignals
from holdfast.supervision.training.run_to_end import run_to_end
from holdfast.terminal.run_view import Terminal
from holdfast.terminal.working import working

EXAMPLE = "holdfast train examples/quickstart.yaml train.lr=1e-4 --run runs/first"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, metavar="CONFIG", help="the run's YAML file")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="change single keys, for example train.lr=1e-4")
    parser.add_argument("--run", type=Path, metavar="DIR", help="run folder (default: runs/NAME); an unfinished run there is resumed")
    parser.add_argument(
        "--extend", action="store_true", help="lengthen an existing run to the config's new train.steps, train.epochs or train.until"
    )
    parser.add_argument("--detach", action="store_true", help="run in the background, and return once training is under way")
    parser.add_argument(
        "--faults", type=Path, metavar="FILE", help="inject these faults, to rehearse a recovery (docs/reference/faults.md)"
    )
    parser.add_argument("--json", action="store_true", help="print summary.json on standard output, everything else on standard error")
    parser.add_argument("--quiet", action="store_true", help="say only what went wrong, and the summary")


def run(arguments: argparse.Namespace) -> tuple[int, Json]:
    """Train to an end. Exit codes: 0 finished, 1 blocked, 2 config, 3 given up, 130 stopped by the user and resumable."""
    stop = StopSignals()
    terminal = Terminal(to_stderr=arguments.json, quiet=arguments.quiet)
    begun = arguments.run is not None and RunFolder(arguments.run).data_file.exists()  # it has its own copy of the rows
    config = load_config(arguments.config, arguments.overrides, need_rows=not begun, fetch=False)
    sweep(SHARED_MEMORY)
    refuse_missing_trackers(config)
    refuse_missing_sendmail(config.run.notify)
    faults = [*config.faults, *(load_faults(arguments.faults) if arguments.faults else [])]
    path = (arguments.run or Path("runs") / (config.run.name or arguments.config.stem)).resolve()
    if (known := RunFolder(path)).config_file.exists():
        stop.standing = f"the run stands at step {known.committed()}, as before; rerun the same command to resume"
    if rank_info := rank_info_of(os.environ):
        config = with_ranks(config, rank_info)
        if rank_info.number:
            stop.running = True
            return Follower(RunFolder(path), rank_info, stop.asked_for, terminal.say).to_end(), {}
    fetched(path, config, terminal.tell)
    with held(path) as (folder, lock):
        terminal.fall_back_on(folder.supervisor_log)
        stop.outlive_terminal(terminal)
        with working("preparing the run", arguments.json or arguments.quiet):
            config = open_run(folder, config, arguments.extend, terminal)
        summary = read_json(folder.summary_file)
        if summary and summary["status"] == "finished":
            terminal.say(f"{path} is finished; to train longer: raise train.steps or train.epochs and add --extend")
            terminal.summary(summary, folder)
            return DONE, summary
        if arguments.detach:
            return detach(folder, lock, _again(arguments, path), terminal, stop)
        if rank_info:
            end_strays(folder)
        faults_file = write_faults(folder, faults)
        code, summary = run_to_end(folder, config, faults_file, terminal, stop)
        if config.train.ladder == "proven":
            _step_down(folder, config, summary, terminal)
        return code, summary


def _step_down(run: RunFolder, config: Config, summary: Json, terminal: Terminal) -> None:
    """Count incidents against the rungs whose settings their remedies took back: the next run here goes without them."""
    cards = cards_of("remedies")
    remedies = {one["remedy"] for one in summary.get("incidents") or ()}
    changed = {name for remedy in remedies if remedy in cards for name in (*cards[remedy].settings, *cards[remedy].env)}
    if changed and (guilty := count_against(config, read_json(run.machine_file) or {}, changed)):
        terminal.tell(f"incident with {', '.join(guilty)}: counted against it on this machine; the next run here goes without it")


def _again(arguments: argparse.Namespace, path: Path) -> list[str]:
    """Return the arguments with which another process trains this prepared run."""
    faults = ["--faults", str(arguments.faults)] if arguments.faults else []
    quiet = ["--quiet"] if arguments.quiet else []
    return ["train", str(arguments.config), *arguments.overrides, "--run", short(path), *faults, *quiet]
