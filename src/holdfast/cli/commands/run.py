"""`holdfast run -- COMMAND ...`: supervise somebody else's training command to its end."""

from __future__ import annotations

import argparse
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import yaml

from holdfast.base.errors import DONE, USAGE, Stop
from holdfast.base.files import Json
from holdfast.base.safe_open import read_small
from holdfast.book import cards_of
from holdfast.book.kinds.launcher import given
from holdfast.config.yaml_tree import value_of
from holdfast.report.words import shown
from holdfast.run.command import Command, read_command, write_command
from holdfast.run.fingerprints import read_fingerprints
from holdfast.run.folder import RunFolder
from holdfast.supervision.command.run_to_end import finished_before, free_name, run_command
from holdfast.supervision.command.standard_input import given_input, keep
from holdfast.supervision.command.told_of_running import WITHOUT_CALLBACK
from holdfast.supervision.companions.notified import notify_in
from holdfast.supervision.foreign_checkpoints.newest import marks
from holdfast.supervision.policy.resuming import checkpoints_of, known_by, resumes_by, training_in
from holdfast.supervision.policy.shell_string import commands_in
from holdfast.supervision.preparation.lock import held
from holdfast.supervision.remote.of_command import fetched_for
from holdfast.supervision.remote.targets import target_of
from holdfast.supervision.runs import RUNS
from holdfast.supervision.signals import StopSignals
from holdfast.terminal.echo import Echo
from holdfast.terminal.run_view import Terminal

EXAMPLE = "holdfast run --name mine -- python train.py --output_dir out"
_SCRIPT = re.compile(r"([\w.-]+?)(?:\.py|\.sh)$")
_PYTHON, _LAUNCHER = re.compile(r"python[0-9.]*"), re.compile("torchrun|accelerate|deepspeed")
_GUARDED = re.compile(rb"^\s*(?:from holdfast\.guard import|import holdfast\.guard|from holdfast import guard)\b", re.MULTILINE)
# a script that makes a Trainer of transformers, or TRL's, a subclass
_TRAINER = re.compile(rb"^\s*(?:from|import) (?:transformers|trl|unsloth)\b[^\0]*?\w*Trainer\(", re.MULTILINE)
_LONGEST_SCRIPT = 1 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", metavar="N", help="the run's folder under runs/ (default: the script's name)")
    parser.add_argument("--run", type=Path, metavar="DIR", help="run folder; an unfinished run of this command there is resumed")
    parser.add_argument(
        "--progress",
        metavar="REGEX|FILE",
        help="how to read its steps: a regular expression with a group, for its output, or a file that grows",
    )
    parser.add_argument("--checkpoints", metavar="DIR", help="where it saves, if its command line does not say (--output_dir does)")
    parser.add_argument("--retries", type=int, metavar="N", help="restart it at most N times (default: as long as it makes progress)")
    parser.add_argument(
        "--hang-s", type=float, default=Command.hang_s, metavar="S", help="seconds of silence that count as a hang, at least (600)"
    )
    parser.add_argument(
        "--stop-s", type=float, default=Command.stop_s, metavar="S", help="seconds between asking it to stop and killing it (60)"
    )
    parser.add_argument("--try", dest="tries", action="store_true", help="if it fails again, try the book's remedies, one at a time")
    parser.add_argument("--callback", action="store_true", help="put holdfast's callback into every transformers Trainer it makes")
    parser.add_argument(
        "--compare",
        type=Path,
        metavar="RUN",
        help="at the end, say at which step this training first departs from that run of the same command",
    )
    parser.add_argument(
        "--to",
        metavar="PLACE",
        help="keep its newest checkpoint, and with --callback its state between two, at a second place beside it: a folder or an fsspec"
        " address; the same command goes on from there on another machine",
    )
    parser.add_argument("--to-every", type=int, default=1, metavar="N", help="steps between two states sent there, at least (1)")
    parser.add_argument(
        "--no-standby",
        dest="standby",
        action="store_false",
        help="start no second Python that waits, imports done, to become the next start (with --callback, beside a longer training)",
    )
    parser.add_argument("--notify", type=Path, metavar="FILE", help="who is told of its turns: YAML with the keys of run.notify")
    parser.add_argument("--json", action="store_true", help="print summary.json on standard output, everything else on standard error")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND ...", help="the command, as you would type it")


def run(arguments: argparse.Namespace) -> tuple[int, Json]:
    """Exit codes: 0 the command ended well, 1 blocked, 2 usage, 3 given up, 130 stopped and resumable."""
    terminal = Terminal(to_stderr=True, quiet=False)
    stop = StopSignals(ends=True)
    command, piped = _command(arguments)
    notify = notify_in(arguments.notify) if arguments.notify else None
    beside = _beside(arguments.compare) if arguments.compare else None
    path = _path(arguments, command)
    fetched_for(path, command, terminal.tell)
    with held(path) as (folder, _):
        terminal.fall_back_on(folder.supervisor_log)
        stop.outlive_terminal(terminal)
        command = _taken_up(folder, command, piped)
        if summary := finished_before(folder):
            doubt = f" ({summary['doubt']})" if summary.get("doubt") else ""
            terminal.say(f"{path} is finished{doubt}; to run the command again give another --run or --name")
            return DONE, summary
        terminal.say(f"run: {path}  ({known(command)})")
        if arguments.callback and not command.callback:
            terminal.tell(f"--callback: {cards_of('launchers')[str(command.launcher)].title} {WITHOUT_CALLBACK}")
        return run_command(folder, command, terminal, Echo(2 if arguments.json else 1), stop, notify, beside)


def _command(arguments: argparse.Namespace) -> tuple[Command, bytes]:
    """Return the command to watch over, and what came for it through a pipe. Raises Stop(2)."""
    words = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not words:
        raise Stop(USAGE, "no command is given", "put it behind two dashes: holdfast run -- python train.py --output_dir out")
    if words[0].startswith("-"):
        raise Stop(
            USAGE, f"{words[0]} is not an option of holdfast run", "the command stands behind two dashes: holdfast run -- python train.py"
        )
    _refuse_what_cannot_start(words[0])
    _refuse_missing_script(words)
    _check(arguments)
    card = known_by(words, cards_of("launchers"))
    here, training = Path.cwd(), training_in(words, card)
    config = _config_in(training.words, here / training.folder) if card and card.config_key else {}
    named = arguments.checkpoints or checkpoints_of(words, card, config)
    if named and training.at is not None:  # a shell may have changed the folder when it meets the name
        named = str(here / named)
    file, at, piped = given_input()
    command = Command(
        tuple(words),
        str(here),
        card.id if card else None,
        named,
        arguments.progress,
        arguments.retries,
        arguments.hang_s,
        arguments.stop_s,
        arguments.tries,
        arguments.callback and (card is None or card.callback),
        stdin=file,
        stdin_at=at,
        to=arguments.to,
        to_every=arguments.to_every,
        standby=arguments.standby,
    )
    flag = resumes_by(words, card)
    goes_on = flag is not None and given(training.words, flag) is not None
    if command.place is None or goes_on:  # it goes on from what is there: that is its own
        return command, piped
    return replace(command, there=marks(command.place, card.whole if card else "files")), piped


def _beside(path: Path) -> RunFolder:
    """Return the run that steps are to be held against. Raises Stop(2) where nothing was noted of its steps."""
    run = RunFolder(path.resolve())
    if not run.command_file.exists():
        raise Stop(USAGE, f"--compare {path}: that is no run of holdfast run", "name its run folder, for example runs/train")
    if not any(not look.loaded for look in read_fingerprints(run)):
        text = f"--compare {path}: nothing was noted of its steps"
        raise Stop(USAGE, text, "run it with --callback, on one device: holdfast run --callback --run DIR -- COMMAND")
    return run


def _refuse_what_cannot_start(program: str) -> None:
    found = shutil.which(program)
    if found is None:
        file = Path(program)
        if "/" in program and file.is_file():
            raise Stop(USAGE, f"{program} is not executable", f"chmod +x {shown(file)}, or name its interpreter: python {shown(file)}")
        near = f"; ./{program} is there" if file.is_file() else ""
        raise Stop(USAGE, f"there is no command {program!r}{near}", f"try it alone: {program} --help")


def _refuse_missing_script(words: Sequence[str]) -> None:
    """Refuse a command that names its interpreter or launcher, and a script that is not there."""
    script = _script_of(words)
    if script is None or Path(script).exists():
        return
    from holdfast.config.load import near_text  # pydantic is imported only where something is wrong

    near = near_text(Path(script)).removeprefix("; ") or "name the script as you do where it runs by hand"
    raise Stop(USAGE, f"{script}: no such file; the current folder is {Path.cwd()}", near)


def _script_of(words: Sequence[str]) -> str | None:
    """Return the script of a command that begins with an interpreter or launcher; None for another, and where it is a module or a text."""
    program = Path(words[0]).name
    rest = iter(enumerate(words[1:]))
    if _LAUNCHER.fullmatch(program) and not {"-m", "--module"} & set(words):
        return next((word for at, word in rest if word.endswith(".py") and not words[at].startswith("-")), None)
    if not _PYTHON.fullmatch(program):
        return None
    for _, word in rest:
        if word in ("-W", "-X"):
            next(rest, None)
        elif not word.startswith("-") or word == "--":
            return None if word == "--" else word
        elif re.match(r"-[A-Za-z]*[cm]|-$|--", word):  # a text, a module, standard input
            return None
    return None


def _check(arguments: argparse.Namespace) -> None:
    if arguments.progress is not None and "(" in arguments.progress:
        try:
            re.compile(arguments.progress)
        except re.error as error:
            raise Stop(USAGE, f"--progress {arguments.progress}: {error}", r"for example --progress 'step (\d+) of (\d+)'") from None
    for name, value in (("--hang-s", arguments.hang_s), ("--stop-s", arguments.stop_s)):
        if not 0 < value < float("inf"):
            raise Stop(USAGE, f"{name} {value:g}: not a number of seconds above 0", f"for example {name} 120")
    if arguments.to_every < 1:
        raise Stop(USAGE, f"--to-every {arguments.to_every}: below 1", "1 sends each state that the callback keeps")
    if arguments.to is not None:
        target_of(arguments.to)
    if arguments.retries is not None and arguments.retries < 0:
        raise Stop(USAGE, f"--retries {arguments.retries}: below 0", "0 restarts it never")


def _config_in(words: Sequence[str], here: Path) -> Json:
    """Read the YAML file that the command names; empty where there is none, or it cannot be read."""
    for word in words[1:]:
        file = here / word
        if file.suffix in (".yaml", ".yml") and file.is_file():
            try:
                tree = value_of(read_small(file).decode("utf-8"))
            except (yaml.YAMLError, OSError, UnicodeDecodeError):
                continue
            if isinstance(tree, dict):
                return tree
    return {}


def _path(arguments: argparse.Namespace, command: Command) -> Path:
    if arguments.run is not None:
        return Path(arguments.run).resolve()
    if arguments.name is not None:
        if "/" in arguments.name or arguments.name in ("", ".", ".."):
            raise Stop(USAGE, f"--name {arguments.name!r} is not a name for a folder", "a folder anywhere: --run DIR")
        return (RUNS / str(arguments.name)).resolve()
    words = [word for one in commands_in(command.argv) for word in one.words]
    scripts = [found[1] for word in words if (found := _SCRIPT.search(Path(word).name))]
    return free_name(RUNS, scripts[0] if scripts else Path(command.argv[0]).name or "command", command).resolve()


def _taken_up(folder: RunFolder, command: Command, piped: bytes) -> Command:
    """Return the command of this folder: a new one, or the one begun here, with the options of today. Raises Stop(2) for another."""
    if folder.config_file.exists():
        raise Stop(USAGE, f"{folder.path} is a run of holdfast train", "another folder: --run DIR")
    begun = read_command(folder)
    if begun is not None:
        if (begun.argv, begun.folder) != (command.argv, command.folder):
            text = f"{folder.path} is the run of another command: {' '.join(begun.argv)[:200]} (in {begun.folder})"
            raise Stop(USAGE, text, "give that one, or another folder with --run DIR")
        command = replace(command, there=begun.there, unknown_option=begun.unknown_option)
        if command.stdin is None:  # as it was given when it was begun
            command = replace(command, stdin=begun.stdin, stdin_at=begun.stdin_at)
    if piped and not finished_before(folder):
        keep(piped, folder.path)
    if command != begun:  # a disk that is full keeps nobody from taking up a command that lives
        write_command(folder, command)
    return command


def known(command: Command) -> str:
    """Say what is known of the command, for the first line."""
    if command.checkpoints:
        where = f"checkpoints in {command.checkpoints}"
    elif command.callback:
        where = "where it saves is told by the callback"
    elif _found_in(command, _GUARDED):
        where = "its state is kept in memory by holdfast.guard"
    elif _found_in(command, _TRAINER):
        where = "where it saves is not known; it makes a Trainer, so with --callback it goes on from its last step after a death"
    else:
        where = "where it saves is not known: --checkpoints DIR tells"
    return f"{command.launcher or 'a command of no known kind'}; {where}"


def _found_in(command: Command, text: re.Pattern[bytes]) -> bool:
    """Return whether a script that the command names holds a text."""
    inside = commands_in(command.argv)
    scripts = (Path(command.folder, one.folder, word) for one in inside for word in one.words if word.endswith(".py"))
    return any(text.search(_text_of(script)) for script in scripts)


def _text_of(script: Path) -> bytes:
    try:
        return read_small(script, _LONGEST_SCRIPT)
    except OSError:
        return b""
