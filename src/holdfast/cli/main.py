"""The command line: one parser, the exit codes, and the only place that prints an error."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import traceback
import warnings

import orjson

from holdfast.base.errors import BLOCKED, INTERRUPTED, NO_THREADS, OUR_BUG, Stop, error_message, is_no_memory
from holdfast.base.file_errors import file_error, loop_of_links
from holdfast.base.files import Json
from holdfast.base.inert import say
from holdfast.base.tasks import own_verbs
from holdfast.base.versions import __version__
from holdfast.cli.outputs import code_of_output, guard_outputs
from holdfast.cli.parser import Parser, add_verbs
from holdfast.run.outcomes import COMMAND_STATUS
from holdfast.supervision.sigterm import as_ctrl_c
from holdfast.terminal.working import working

VERBS = {
    "init": "write a first config, from a few questions or from another trainer's config, command line or script",
    "doctor": "look at the machine: what would fail, what is risky, what fixes it",
    "plan": "say what a run needs before it begins: whether it fits, where each byte goes, what would fit instead",
    "check": "try a run before it begins: start, first steps, ten rows by heart, precision, order, resume, speed",
    "tune": "climb to faster settings by experiment: each rung proven against plain kernels on this machine, or left out",
    "train": "train a model from a config, or go on with an unfinished run",
    "run": "supervise any training command: restart it from its newest whole checkpoint, end hangs, say why it fails",
    "walk": "train on the past, test on what follows, fold by fold (tables)",
    "drill": "rehearse the worst on this machine: faults in short runs, each compared with an undisturbed one",
    "status": "show what is running where, how far each run is, and what happened to it",
    "attach": "follow a running run, from any terminal",
    "watch": "show all runs on one page, for a browser or a phone: losses, incidents, time left, a stop button",
    "stop": "let a run finish its step, save and end, as Ctrl-C does",
    "move": "move a run to a shared folder or an object store, and from there to another machine",
    "compare": "say what differs between runs, and what the difference most likely comes from",
    "trial": "replay one step of a run, as it was or with one thing changed",
    "diagnose": "name what ended a run, from any trainer's log",
    "bundle": "pack a run into one archive for an issue, without secrets and names",
    "explain": "print a card of the book: mechanism, source, remedies",
    "chat": "talk to the base and the tuned model of a run side by side",
    "verify": "say whether the tuned model is better than the base, on rows it has not seen",
    "export": "write a run's result for other programs, proven equal to base and adapter",
    "learn": "let a model learn from use, round by round: collect, train, prove it better, promote or refuse",
    "serve": "serve base and tuned model on this machine, OpenAI-compatible, with a page to compare them blind",
    "models": "list what was shipped, promote a version past a gate, or roll back",
    "data": "check rows, clean, split, sample or compare them, make them from a recipe, collect them from real use",
    "report": "regenerate a run's one-file report",
    "schema": "print the JSON schema of a config file",
    "completion": "print what makes your shell complete commands, options and keys",
}


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="holdfast", description="holdfast makes fine-tuning runs finish.")
    parser.add_argument("--version", action="version", version=f"holdfast {__version__}")
    parser.set_defaults(root=parser)
    add_verbs(parser, "verb", VERBS, "holdfast.cli.commands.", own_verbs())
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run one command; return its exit code."""
    as_json = "--json" in (sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # somebody's own stream, or a closed one
            # an unprintable arrow ends no command, and a pipe gets each line when it is said, as a terminal does
            stream.reconfigure(errors="backslashreplace", line_buffering=True)  # type: ignore[union-attr]
    try:
        arguments = build_parser().parse_args(argv)
        as_json = getattr(arguments, "json", False)
        work = getattr(arguments.verb_module, "WORK", "")  # of commands that say nothing of their own while they work
        with as_ctrl_c(INTERRUPTED), working(work, as_json) if work else contextlib.nullcontext():
            code, answer = arguments.verb_module.run(arguments)
    except Stop as stop:
        _tell(f"holdfast: {stop}")
        told, own = _untold(stop.code, stop.message, stop.hint), stop.answer or {}
        code, answer = stop.code, own if "status" in own else told | own
    except KeyboardInterrupt as interrupt:
        _tell(f"holdfast: interrupted{f'; {interrupt}' if str(interrupt) else ''}")
        code, answer = INTERRUPTED, _untold(INTERRUPTED, str(interrupt) or "interrupted", "")
    except (BrokenPipeError, SystemExit) as end:
        if not isinstance(end, BrokenPipeError) and not isinstance(end.__context__, BrokenPipeError):  # what rich makes of one
            raise
        return 0
    except Exception as error:  # noqa: BLE001  (the CLI's edge: a bug of ours is told as one)
        notes = vars(error).pop("__notes__", [])  # what goes on all the same
        edge = Stop(OUR_BUG, "this is a bug in holdfast, not in your run; please report it with the lines above", "; ".join(notes))
        if in_words := _of_the_system(error):
            edge = in_words
        else:
            traceback.print_exc()
        _tell(f"holdfast: {edge}")
        code, answer = edge.code, _untold(edge.code, edge.message, edge.hint)
    if as_json:
        with contextlib.suppress(BrokenPipeError):
            print(_json(answer))
    return int(code)


def _of_the_system(error: Exception) -> Stop | None:
    """Return in words what is no bug: a file system that refuses, links in a circle, a limit of memory or of threads; None for others."""
    if isinstance(error, OSError):
        return file_error(error)
    if isinstance(error, MemoryError) or (isinstance(error, ImportError) and is_no_memory(str(error))):
        said = error_message(error) if isinstance(error, MemoryError) else str(error).strip().splitlines()[-1]
        return Stop(BLOCKED, f"memory ran out ({said})", "raise the limit (ulimit -v unlimited), or end what holds the memory")
    if NO_THREADS in str(error):
        return Stop(BLOCKED, "the system gave no more threads", "raise the limits (ulimit -u, ulimit -v), then repeat the command")
    return loop_of_links(error)


def _tell(text: str) -> None:
    """Print what went wrong. Whoever reads it may have had enough; None is a stream that is closed."""
    with contextlib.suppress(BrokenPipeError):
        if sys.stderr is not None:
            say(text, sys.stderr)


def _json(answer: Json) -> str:
    try:
        return orjson.dumps(answer).decode()
    except TypeError:  # a name that is not UTF-8, a number beyond 64 bits
        return json.dumps(answer)


def _untold(code: int, error: str, hint: str) -> Json:
    """Return what --json prints of a command that did not come to its answer: like any other, it has a status."""
    return {"status": COMMAND_STATUS.get(code, "failed"), "error": error, "hint": hint, "code": code}


def entry() -> None:
    """Run `main` for the console script."""
    guard_outputs()
    warnings.simplefilter("ignore", ResourceWarning)  # children that outlive us are left on purpose, whatever PYTHONWARNINGS says
    try:
        code = main()
    except SystemExit as end:  # of --help
        code = end.code if isinstance(end.code, int) else 0
    raise SystemExit(code_of_output(code))
