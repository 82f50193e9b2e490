"""`holdfast stop RUN`: let a run finish its step, save and end, as Ctrl-C in its terminal does, and wait for that."""

from __future__ import annotations

import argparse
import os
import signal
import time
from pathlib import Path

from holdfast.base.errors import BLOCKED, DONE, Stop
from holdfast.base.files import Json
from holdfast.base.identity import Identity, alive, myself
from holdfast.processes.process import LOOK_EVERY_S
from holdfast.report.words import shown
from holdfast.run.command import read_command
from holdfast.run.folder import RunFolder
from holdfast.run.holder import signal_holder
from holdfast.supervision.command.run_to_end import run_command
from holdfast.supervision.preparation.lock import held
from holdfast.supervision.runs import chosen, entry
from holdfast.supervision.signals import StopSignals
from holdfast.supervision.standing import RunStanding, lives, look
from holdfast.supervision.training.run_to_end import run_to_end
from holdfast.terminal.echo import Echo
from holdfast.terminal.run_view import Terminal

EXAMPLE = "holdfast stop runs/quickstart"
_REMIND_EVERY_S = 30.0
_LEAVES_WITHIN_S = 10.0  # between a supervisor's last word and the end of its process


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_folder", type=Path, metavar="RUN", help="a run folder")
    parser.add_argument("--json", action="store_true", help="print the run's entry, as status does")


def run(arguments: argparse.Namespace) -> tuple[int, Json]:
    """Exit code 0 once nobody works on the run any more, also when nobody did."""
    folder = chosen(arguments.run_folder)
    terminal = Terminal(to_stderr=arguments.json, quiet=False)
    if lives(folder):
        try:
            _stop(folder, terminal)
        except KeyboardInterrupt:
            text = f"the run was asked to stop, and will; see holdfast status {shown(folder.path)}"
            raise KeyboardInterrupt(text) from None
    standing = look(folder)
    _see_off(standing)
    step = f"step {standing.step:,}" + (f" of {standing.steps:,}" if standing.steps else "")
    command = standing.holder.get("command")
    going_on = f"; resume with: {command}" if command and standing.state != "finished" else ""
    terminal.say(f"{shown(folder.path)} is not running: {standing.state}, {step}{going_on}")
    return DONE, entry(standing)


def _stop(folder: RunFolder, terminal: Terminal) -> None:
    """Ask each supervisor that turns up, once; where none watches the trainer, be it. Returns when all of them are gone."""
    asked: list[Identity] = []
    reminded = time.monotonic()
    while lives(folder) or any(map(alive, asked)):
        standing = look(folder)
        pid, identity = standing.pids.get("supervisor"), standing.holder.get("identity", {})
        if standing.state == "running" and not standing.supervised:
            _take_over(folder, terminal)
        elif standing.supervised and pid is None and not asked:
            raise _out_of_reach(standing)
        elif pid is not None and identity not in asked:
            asked.append(identity)
            _ask(standing, identity)
            terminal.say(f"asked process {pid} to stop {shown(folder.path)}: {_what_follows(folder)}")
        if time.monotonic() - reminded > _REMIND_EVERY_S:
            reminded = time.monotonic()
            terminal.tell(_still(standing))
        time.sleep(LOOK_EVERY_S)


def _what_follows(folder: RunFolder) -> str:
    return "it ends its command" if folder.command_file.exists() else "it finishes its step and saves"


def _see_off(standing: RunStanding) -> None:
    """Wait for the process of a supervisor that has let go of its run, so that nothing of it is left."""
    identity = standing.holder.get("identity")
    until = time.monotonic() + _LEAVES_WITHIN_S
    while identity != myself() and alive(identity) and time.monotonic() < until:
        time.sleep(LOOK_EVERY_S)


def _ask(standing: RunStanding, identity: Identity) -> None:
    """Send the supervisor SIGTERM. Raises Stop(1) where the process that the lock file names does not hold the lock."""
    pid, lock = identity["pid"], standing.run.supervisor_lock
    if signal_holder(identity, lock, signal.SIGTERM) or not alive(identity):
        return
    if os.geteuid() not in (0, Path(f"/proc/{pid}").stat().st_uid):
        raise Stop(BLOCKED, f"{standing.run.path} is another user's: process {pid} takes no signal from you", "ask its owner")
    text = f"{lock} names process {pid}, but that process does not hold it: it is sent no signal"
    raise Stop(BLOCKED, text, "end the run where it was started, with Ctrl-C or SIGTERM to its holdfast train")


def _take_over(folder: RunFolder, terminal: Terminal) -> None:
    """Adopt a trainer that nobody watches, only to stop it: its state is saved and its summary written as ever."""
    with held(folder.path, goes_on=False):
        if command := read_command(folder):
            run_command(folder, command, terminal, Echo(1), StopSignals(ends=True, asked=1))
            return
        stop = StopSignals(asked=1)
        run_to_end(folder, folder.config(), None, terminal, stop)


def _out_of_reach(standing: RunStanding) -> Stop:
    where = f"on {standing.elsewhere}" if standing.elsewhere else "where its processes cannot be seen from here: another container, perhaps"
    text = f"{standing.run.path} runs {where}"
    return Stop(BLOCKED, text, f"run `holdfast stop {standing.run.path}` there, or send SIGTERM to its holdfast train")


def _still(standing: RunStanding) -> str:
    trainer = standing.pids.get("trainer")
    text = f"still {standing.doing}; step {standing.step} is the last committed one"
    return text + (f"; to end it without the step in flight: kill -9 {trainer}" if trainer else "")
