"""`holdfast train CONFIG`: look at machine and data, plan, train under supervision, prove the result."""

from __future__ import annotations

import argparse
import errno
import uuid
from collections.abc import Callable
from pathlib import Path

import yaml

from holdfast.core.config.config import Config
from holdfast.core.config.faults import Fault
from holdfast.core.config.load import load_config, load_faults
from holdfast.core.errors import BLOCKED, DONE, GAVE_UP, INTERRUPTED, Stop
from holdfast.core.files import Json, read_json, write_bytes
from holdfast.core.run.folder import RunFolder
from holdfast.core.run.memory_file import memory_places, sweep
from holdfast.mind.standby import standby_mode
from holdfast.supervise import Outcome, RealWorld, View, supervise
from holdfast.ui.terminal import Terminal
from holdfast.ui.words import short
from holdfast.verbs.detach import detach
from holdfast.verbs.finish import finish, keep_newest, summary_of, write_summary
from holdfast.verbs.launch import advised, trainer_launch
from holdfast.verbs.prepare import held, open_run
from holdfast.verbs.signals import StopSignals, outlive_terminal
from holdfast.verbs.start import with_start
from holdfast.verbs.trackers import refuse_missing_trackers, tracked
from holdfast.world.standby import Standby

EXAMPLE = "holdfast train examples/quickstart.yaml train.lr=1e-4 --run runs/first"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, metavar="CONFIG", help="the run's YAML file")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="change single keys, for example train.lr=1e-4")
    parser.add_argument("--run", type=Path, metavar="DIR", help="run folder (default: runs/NAME); an unfinished run there goes on")
    parser.add_argument("--extend", action="store_true", help="let an existing run end at the config's new train.steps or train.epochs")
    parser.add_argument("--detach", action="store_true", help="go on without this terminal, and return once the training is under way")
    parser.add_argument("--faults", type=Path, metavar="FILE", help="inject these faults, to rehearse a recovery (docs/faults.md)")
    parser.add_argument("--json", action="store_true", help="print summary.json on standard output, everything else on standard error")
    parser.add_argument("--quiet", action="store_true", help="say only what went wrong, and the summary")


def run(arguments: argparse.Namespace) -> tuple[int, Json]:
    """Train to an end. Exit codes: 0 finished, 1 blocked, 2 config, 3 given up, 130 stopped by the user and resumable."""
    stop = StopSignals()
    terminal = Terminal(to_stderr=arguments.json, quiet=arguments.quiet)
    config = load_config(arguments.config, arguments.overrides)
    refuse_missing_trackers(config)
    faults = [*config.faults, *(load_faults(arguments.faults) if arguments.faults else [])]
    path = (arguments.run or Path("runs") / (config.run.name or arguments.config.stem)).resolve()
    if (known := RunFolder(path)).config_file.exists():
        stop.standing = f"the run stands at step {known.committed()}, as before; the same command goes on from there"
    with held(path) as (folder, lock):
        terminal.fall_back_on(folder.supervisor_log)
        outlive_terminal(terminal)
        config = with_start(folder, config)
        open_run(folder, config, arguments.extend, terminal)
        summary = read_json(folder.summary_file)
        if summary and summary["status"] == "finished":
            terminal.say(f"{path} is finished; to train longer: raise train.steps or train.epochs and add --extend")
            terminal.summary(summary, folder)
            return DONE, summary
        if arguments.detach:
            return detach(folder, lock, _again(arguments, path), terminal, stop)
        faults_file = _write_faults(folder, faults)
        return train_on(folder, config, faults_file, terminal, stop)


def _again(arguments: argparse.Namespace, path: Path) -> list[str]:
    """The arguments with which another process trains this prepared run."""
    faults = ["--faults", str(arguments.faults)] if arguments.faults else []
    quiet = ["--quiet"] if arguments.quiet else []
    return ["train", str(arguments.config), *arguments.overrides, "--run", short(path), *faults, *quiet]


def _write_faults(run: RunFolder, faults: list[Fault]) -> str | None:
    """Put the faults where trainer and writer look for them; the supervisor itself never reads them."""
    file = run.path / "faults.yaml"
    if not faults:
        file.unlink(missing_ok=True)
        return None
    entries = [fault.model_dump(mode="json", exclude_unset=True) for fault in faults]
    write_bytes(file, yaml.safe_dump({"faults": entries}, sort_keys=False).encode())
    return str(file)


def train_on(run: RunFolder, config: Config, faults_file: str | None, terminal: Terminal, stop: StopSignals) -> tuple[int, Json]:
    """Supervise a prepared run to its end, or to the step at which it is asked to stop; exit code and summary."""
    places = memory_places(run.path, run.id(), config.save.snapshot_dir, config.save.flush_snapshots)
    sweep(places[0].parent)
    orders: Json = {
        "session": uuid.uuid4().hex,
        "memory_places": [str(place) for place in places],
        "faults": faults_file,
    }
    for advice in advised(run):
        terminal.say(f"environment of the trainer: {advice.name}={advice.value} ({advice.reason})")
    terminal.begin(run, config)
    view = View(terminal.tick, terminal.tell, stop.asked_for)
    stop.training = True
    try:
        run.summary_file.unlink(missing_ok=True)
        with tracked(run, config):
            with _standby(run, config) as standby:
                outcome = supervise(trainer_launch, run, orders, view, RealWorld(standby))
            terminal.end()
            return _conclude(run, config, places, outcome, terminal, stop.asked_for)
    except FileNotFoundError:
        if run.config_file.exists():
            raise
        raise Stop(BLOCKED, f"{run.path} was removed while the run went on", "the same command begins the run anew") from None
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise _disk_full(run, places) from None
    finally:
        terminal.end()


def _standby(run: RunFolder, config: Config) -> Standby:
    mode = standby_mode(config, run.plan(), read_json(run.machine_file) or {})
    return Standby(run, mode, always=bool(config.run.standby))


def _conclude(
    run: RunFolder, config: Config, places: list[Path], outcome: Outcome, terminal: Terminal, stop: Callable[[], bool]
) -> tuple[int, Json]:
    if outcome.ending.kind == "finished":
        summary = finish(run, config, places, terminal, stop)
        return DONE, summary
    saved = keep_newest(run, places, config)
    if outcome.decision is None:
        summary = write_summary(run, "interrupted", None)
        run.event("interrupted", step=run.committed(), saved=saved)
        where = f"after step {run.committed()}" if run.committed() else "before the first step"
        terminal.tell(f"stopped {where}; the same command goes on from there")
        return INTERRUPTED, summary
    run.event("gave_up", step=run.committed(), reason=outcome.decision.reason, saved=saved)
    summary = write_summary(run, "gave_up", outcome.decision.reason)
    wreck = outcome.wreck
    if outcome.ending.kind == "refused":
        raise Stop(BLOCKED, outcome.decision.reason, str(outcome.ending.facts.get("hint", "")), summary)
    terminal.summary(summary, run)
    last = [line for line in wreck.lines if line.strip()][-3:] if wreck else []
    log = run.attempt(run.attempts()[-1]) / "output.log"
    kept = f"the state after step {saved} is kept in {run.checkpoints}" if saved else "no step was committed"
    text = f"gave up: {outcome.decision.reason}\n  {kept}" + "".join(f"\n  | {line}" for line in last)
    raise Stop(GAVE_UP, text, f"read {log}; when the cause is mended, the same command goes on", summary)


def _disk_full(run: RunFolder, places: list[Path]) -> Stop:
    state = next((place for place in places if place.exists()), None)
    kept = f"the newest state is in {state}" if state else "checkpoints so far are kept"
    text = f"the disk of {run.path} is full after step {run.committed()}; {kept}"
    hint = "make room; then the same command goes on from there, nothing is lost"
    return Stop(GAVE_UP, text, hint, summary_of(run, "gave_up", text))
