"""Whether a command has saved anything that a later start could go on from. Reads only."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from holdfast.base.units import counted
from holdfast.book import cards_of
from holdfast.book.kinds.launcher import LauncherCard
from holdfast.machine import clock
from holdfast.report.words import short
from holdfast.run.attempt import read_launch_spec
from holdfast.run.command import Command, read_command
from holdfast.run.folder import RunFolder
from holdfast.supervision.foreign_checkpoints.newest import candidates, changed, form_of

_INTERVAL = re.compile(
    r"--?((?:save|ckpt|checkpoint)[-_](?:every|steps|interval|freq\w*)(?:[-_]\w+)?|every[-_]n[-_]train[-_]steps)(?:=(.+))?"
)
_NOTES = (".log", ".txt", ".json", ".jsonl", ".csv", ".yaml", ".yml", ".md", ".out", ".err", ".png", ".html")  # no weights are in these
_GONE = "what was saved is not there any more"
_TRAINER, _OWN = "transformers-trainer", 500  # steps between two checkpoints, by default


def nothing_saved(run: RunFolder, command: Command | None = None) -> str:
    """Say that a run's command saved nothing, with its furthest step and save interval; empty where it saved, or that is not known.

    A folder of checkpoints that is not known may hold some, and so may one with files of another form: nothing is said of it.
    """
    command = command or read_command(run)
    place = command.place if command else None
    if command is None or place is None:
        return ""
    cards: dict[str, LauncherCard] = cards_of("launchers")
    form = form_of(command, cards.get(command.launcher or ""))
    if any(command.there.get(entry.name) != changed(entry) for _, entry in candidates(place, form)):
        return ""
    furthest = max((int(row.get("step") or 0) for row in run.progress()), default=0)
    aside = sum(1 for event in run.events() if event["event"] == "checkpoint_set_aside")
    if gone := _gone(run, place):
        return gone
    began = read_launch_spec(run.attempt(1))
    if form == "files" and not aside and began and began.started and _written_since(place, clock.in_calendar(began.started)):
        return ""
    what = f"nothing whole was saved ({counted(aside, 'checkpoint')} set aside)" if aside else "nothing was saved"
    reached = f"step {furthest:,} was the furthest" if furthest else "no step was seen"
    return f"{what}: no checkpoint in {short(place)}, {reached}{_interval(command, furthest)}"


def _gone(run: RunFolder, place: Path) -> str:
    """Say that checkpoints were seen that are not there any more; empty where none was seen, or its name is set aside."""
    seen = max((row["wrote"][1] for row in run.progress() if row.get("wrote")), default=0)
    aside = any(event["event"] == "checkpoint_set_aside" for event in run.events())
    return f"{_GONE}: the newest checkpoint seen in {short(place)} was of step {seen:,}" if seen and not aside else ""


def wrote_nothing(run: RunFolder, command: Command, steps: int) -> str:
    """Return that a command wrote no file that could hold weights where it saves; empty where it did, or that is not known."""
    place, began = command.place, read_launch_spec(run.attempt(1))
    if place is None or began is None or not began.started or _written_since(place, clock.in_calendar(began.started)):
        return ""
    if gone := _gone(run, place):
        return gone
    return f"nothing was saved: no file of weights was written in {short(place)}{_interval(command, steps)}"


def _written_since(place: Path, since: float) -> bool:
    for folder, _, names in os.walk(place, followlinks=True):
        for file in (Path(folder, name) for name in names if not name.endswith(_NOTES) and ".tfevents." not in name):
            try:
                if file.stat().st_mtime >= int(since):  # some file systems keep whole seconds
                    return True
            except OSError:
                continue
    return False


def rerun(lost: str | None, command: Command) -> str:
    """Say how to start a command again, and what that does. lost: as nothing_saved says."""
    if lost:
        why = "nothing of it is there any more" if lost.startswith(_GONE) else "nothing was saved"
        return f"rerun the same command: it begins anew, because {why}"
    if command.place is None and not command.callback:
        return "rerun the same command; where it saves is not known (--checkpoints DIR tells), so it may begin anew"
    return "rerun the same command to resume"


def _interval(command: Command, furthest: int) -> str:
    """Say how often the command saves, as its arguments tell, and the steps it reached; empty where they do not tell."""
    name, value = _asked(command.argv)
    if not name and command.launcher == _TRAINER and not any("save_strategy" in word.replace("-", "_") for word in command.argv):
        late = 1 < furthest < _OWN
        below = f": save_steps below {furthest:,} keeps some" if late else ""
        return f"; where a script says nothing else, transformers saves every {_OWN} steps{below}"
    if not name:
        return ""
    late = int(value) > furthest > 1
    return f", and it saves every {value} steps (--{name})" + (f"; --{name} below {furthest:,} keeps some" if late else "")


def _asked(argv: Sequence[str]) -> tuple[str, str]:
    """Return (option, value) of the argument that sets after how many steps it saves; empty where there is none."""
    words = [part for word in argv for part in word.split()]  # of a shell's text, too
    for at, word in enumerate(words):
        if found := _INTERVAL.fullmatch(word):
            value = found[2] or (words[at + 1] if at + 1 < len(words) else "")
            if value.isdecimal() and int(value):
                return found[1], value
    return "", ""
