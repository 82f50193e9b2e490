"""`holdfast move RUN --to ADDRESS`: move a run to another place, or fetch it from there; the two machines are compared first."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from holdfast.base.errors import BLOCKED, DONE, USAGE, Stop, reading
from holdfast.base.file_errors import file_error
from holdfast.base.files import Json, read_json
from holdfast.checkup.recorded_machine import recorded
from holdfast.report.words import shown
from holdfast.run.folder import RunFolder
from holdfast.run.snapshots.memory_places import memory_places
from holdfast.supervision.finish import keep_newest
from holdfast.supervision.preparation.lock import held
from holdfast.supervision.preparation.prepare import restore_records
from holdfast.supervision.remote.elsewhere import judged, take_from
from holdfast.supervision.remote.lease import free_lease
from holdfast.supervision.remote.state import Sender, states_at
from holdfast.supervision.remote.targets import target_of
from holdfast.supervision.standing import lives
from holdfast.terminal.run_view import Terminal

EXAMPLE = "holdfast move runs/first --to /mnt/shared/first"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="RUN", help="a run folder; or the address a run was moved to")
    parser.add_argument("--to", required=True, metavar="ADDRESS", help="a folder or an fsspec address; or, to fetch, a new run folder here")
    parser.add_argument("--machine", type=Path, metavar="FILE", help="the other machine, as `holdfast doctor --json` printed it there")
    parser.add_argument("--json", action="store_true", help="print what was moved as JSON")


def run(arguments: argparse.Namespace) -> tuple[int, Json]:
    """Exit codes: 0 moved; 1 the run cannot go on there, or its place cannot be reached; 2 usage."""
    terminal = Terminal(to_stderr=arguments.json, quiet=False)
    local = Path(arguments.source).expanduser()
    try:
        if (local / "config.yaml").is_file() or ((local / "run.json").is_file() and not (local / "states").is_dir()):
            return DONE, _send(RunFolder(local.resolve()).existing(), arguments, terminal)
        return DONE, _fetch(arguments, terminal)
    except OSError as error:
        if error.filename and (told := file_error(error)):  # a file of this machine
            raise told from None
        text = f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
        raise Stop(BLOCKED, text, "look at the connection, the credentials and the room there, then run the same command again") from None


def _send(run: RunFolder, arguments: argparse.Namespace, terminal: Terminal) -> Json:
    """Make the newest state durable and send it. The folder stays as it is."""
    if lives(run):
        name = shown(run.path)
        raise Stop(BLOCKED, f"{name} is running", f"stop it first: holdfast stop {name}; or let it send by itself: save.to={arguments.to}")
    target = target_of(arguments.to)
    free_lease(target, run, terminal.tell)
    config = run.config()
    differing, findings = judged(run, recorded(arguments.machine)) if arguments.machine else ([], [])
    with held(run.path, goes_on=False):
        _restore(run, terminal)
        keep_newest(run, memory_places(run.path, run.id(), config.save.snapshot_dir, config.save.flush_snapshots), config, terminal.tell)
        sent = Sender(run, target).send(config.save.keep)
    if sent is None:
        raise Stop(BLOCKED, f"{shown(run.path)} has no checkpoint that verifies, so there is nothing to move", "train it further first")
    for line in differing:
        terminal.tell(f"that machine differs: {line}")
    run.event("moved", step=sent.step, to=target.address, bytes=sent.bytes, machine=differing)
    there = f"holdfast move {shlex.quote(target.address)} --to runs/{run.path.name}"
    size = f"{sent.files} files, {sent.bytes:,} bytes, {sent.new_bytes:,} of them new"
    terminal.say(f"sent the state after step {sent.step}: {size}, to {target.address}")
    terminal.say(f"on the other machine: {there}")
    facts = {"from": str(run.path), "to": target.address, "step": sent.step, "files": sent.files, "bytes": sent.bytes}
    return facts | {
        "new_bytes": sent.new_bytes,
        "seconds": round(sent.seconds, 3),
        "differences": differing,
        "findings": findings,
        "next": there,
    }


def _restore(run: RunFolder, terminal: Terminal) -> None:
    """Bring back what the run would lack there. Raises Stop(1) where it could not go on; of a finished run that is told alone."""
    try:
        with reading(run.path):
            restore_records(run, terminal)
    except Stop as stop:
        if (read_json(run.summary_file) or {}).get("status") != "finished":
            raise Stop(stop.code, f"nothing was sent, as the run could not go on there: {stop.message}", stop.hint) from None
        terminal.tell(f"the run is sent as it is, and could not be trained on: {stop.message}")


def _fetch(arguments: argparse.Namespace, terminal: Terminal) -> Json:
    source = target_of(arguments.source)
    if not states_at(source):
        text = f"{arguments.source} is no run folder, and no place that a run was moved to"
        raise Stop(USAGE, text, "give RUN, the folder of a run; or the address that `holdfast move RUN --to ADDRESS` was given")
    path = Path(arguments.to).expanduser().resolve()
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise Stop(USAGE, f"{path} is there already", "give a new folder: --to runs/NAME")
    found = take_from(source, path, terminal.tell)
    name = shown(path)
    terminal.say(f"fetched the state after step {found['step']} from {source.address} into {name}")
    again = f"holdfast train {name}/config.yaml --run {name}"
    model = RunFolder(path).config().model
    terminal.say(f"go on with: {again}" + (f" model=FOLDER where {model} lies elsewhere here" if "/" in model else ""))
    return {"from": source.address, "to": str(path), **found, "next": again}
