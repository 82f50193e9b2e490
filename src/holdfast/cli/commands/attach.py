"""`holdfast attach [RUN]`: follow a running run as the terminal that began it does. Ctrl-C leaves the run running."""

from __future__ import annotations

import argparse
import signal
import time
from pathlib import Path

from holdfast.base.errors import BLOCKED, DONE, GAVE_UP, INTERRUPTED, USAGE, Stop, reading
from holdfast.base.files import Json
from holdfast.processes.attempt import Attempt
from holdfast.processes.process import LOOK_EVERY_S
from holdfast.report.words import shown
from holdfast.run.folder import RunFolder, runs_in
from holdfast.supervision.runs import RUNS, chosen, entry
from holdfast.supervision.standing import RunStanding, lives, look
from holdfast.terminal.echo import Echo
from holdfast.terminal.run_view import Terminal

EXAMPLE = "holdfast attach runs/quickstart"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_folder", type=Path, nargs="?", metavar="RUN", help="a run folder (default: the one run under runs that lives)")


def run(arguments: argparse.Namespace) -> tuple[int, Json]:
    """Exit codes: those of the run's own `train` once it ends (1 for a run that died), 130 when you leave before."""
    folder = chosen(arguments.run_folder) if arguments.run_folder else _the_living_one()
    terminal = Terminal(to_stderr=False, quiet=False)
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell that starts it in the background has Ctrl-C ignored
        signal.signal(number, signal.default_int_handler)
    try:
        if lives(folder):
            _look_on(folder, terminal)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"detached; the run continues; to end it: holdfast stop {shown(folder.path)}") from None
    finally:
        terminal.end()
    with reading(folder.path):
        return _ended(look(folder), terminal)


def _the_living_one() -> RunFolder:
    living = [folder for folder in runs_in(RUNS.resolve()) if lives(folder)]
    if len(living) == 1:
        return living[0]
    names = "\n".join(f"  {shown(folder.path)}" for folder in living)
    text = f"{len(living)} runs are running:\n{names}" if living else f"no run under {RUNS.resolve()} is running"
    raise Stop(USAGE, text, "name one of them" if living else "what there is: holdfast status")


def _look_on(folder: RunFolder, terminal: Terminal) -> None:
    """Show the run's progress until nobody works on it any more."""
    if folder.command_file.exists():
        _show_command(folder)
        return
    begun, told = False, False
    doing: str | None = None
    attempt: Attempt | None = None
    while lives(folder):
        before, standing = doing, look(folder)
        doing, attempt = standing.doing, standing.attempt
        if doing == "preparing" != before:
            terminal.say(f"{folder.path} is being prepared ({standing.holder.get('command')})")
        if not begun and doing != "preparing":
            begun = True
            terminal.begin(folder, folder.config(), looking_on=True)
        if doing == "evaluating" != before and standing.step == standing.steps:
            terminal.say("the steps are done; base and tuned model are being compared")
        if standing.state == "running" and not standing.supervised and not told:
            told = True
            terminal.tell("no supervisor watches this run: it trains on, but nothing would restart it; rerun the same command to adopt it")
        if attempt is not None:
            terminal.tick(attempt)
        time.sleep(LOOK_EVERY_S)


def _show_command(folder: RunFolder) -> None:
    """Show what somebody else's command prints until nobody works on it any more."""
    echo, shown_of = Echo(1), 0
    while lives(folder):
        newest = max(folder.attempts(), default=0)
        if newest != shown_of:
            echo.drain()
            echo.follow(folder.attempt(newest) / "output.log", from_end=not shown_of)
            shown_of = newest
        echo.look()
        time.sleep(LOOK_EVERY_S)
    echo.drain()


def _ended(standing: RunStanding, terminal: Terminal) -> tuple[int, Json]:
    """Show how a run ended that nobody works on; return its exit code."""
    run, state = standing.run, standing.state
    command = standing.holder.get("command") or "holdfast train CONFIG"
    after = f"after step {standing.step}" if standing.step else "before its first step"
    if state == "dead":
        raise Stop(BLOCKED, f"{run.path} ended {after} and was not finished", f"resume with: {command}")
    if not run.command_file.exists():
        terminal.summary(standing.summary, run)
    if state == "gave_up":
        raise Stop(GAVE_UP, f"gave up {after}: {standing.summary['reason']}", f"fix the cause, then resume with: {command}")
    if state == "interrupted":
        terminal.tell(f"stopped {after}; resume with: {command}")
    return (DONE if state == "finished" else INTERRUPTED), entry(standing)
