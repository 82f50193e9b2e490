"""Entry of every child that needs torch: `python -m holdfast.trainer JOB ...`. A job imports only what it needs."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.base.errors import DeviceGone, Stop
from holdfast.base.file_errors import current_folder
from holdfast.run.outcomes import exit_code
from holdfast.trainer.common.libraries import libraries


class JobEntry(NamedTuple):
    """A job: the function in a module of `trainer/jobs/` that does it, and how its arguments are read.

    with_libraries: import transformers and PEFT with less work before it.
    """

    module: str
    function: str
    arguments: tuple[Callable[[str], Any], ...]
    with_libraries: bool = True


JOBS = {
    "train": JobEntry("train", "train", (Path, int), with_libraries=False),  # imports them once registered
    "join": JobEntry("join", "join", (Path, int), with_libraries=False),
    "standby": JobEntry("standby", "stand_by", (Path, str)),
    "trial": JobEntry("trial", "trial", (Path, Path)),
    "trials": JobEntry("trial", "host_trials", (Path,)),
    "evaluate": JobEntry("evaluate", "evaluate", (Path, int)),
    "chat": JobEntry("chat", "chat", (Path,)),
    "account": JobEntry("account", "account", ()),
    "laboratory": JobEntry("laboratory.host", "host_experiments", (Path,)),
    "losses": JobEntry("losses", "losses", (Path,)),
    "measure": JobEntry("measure", "measure", (Path,)),
    "suite": JobEntry("suite", "suite", (Path,)),
    "serve": JobEntry("serve", "serve", (Path,)),
    "merge": JobEntry("merge", "merge", (Path,)),
    "widen": JobEntry("widen", "widen", (Path, Path), with_libraries=False),
    "probe": JobEntry("torch_facts", "probe", (), with_libraries=False),
    "probes": JobEntry("probes.host", "probe_functions", (Path, int), with_libraries=False),
}


MANAGEMENT = ("amdsmi", "pynvml")  # torch imports one of them if it is there, and needs neither; both have hung and crashed in that


def main(argv: list[str]) -> int:
    """Do one job; return the exit code. A GPU that is gone ends it with a sentence, for the parent to wait; so does what it refuses."""
    faulthandler.enable()
    if current_folder() is None:  # it was removed under the run; transformers asks for it when it is imported
        os.chdir("/")
    for library in MANAGEMENT:
        sys.modules.setdefault(library, None)  # type: ignore[arg-type]  # as Python has it for what must not be imported
    name, *given = argv
    if name not in JOBS:
        raise SystemExit(f"unknown job {name!r}: one of {', '.join(JOBS)}")
    work = JOBS[name]
    try:
        with libraries() if work.with_libraries else contextlib.nullcontext():
            function = getattr(import_module(f"holdfast.trainer.jobs.{work.module}"), work.function)
        return int(function(*(read(text) for read, text in zip(work.arguments, given, strict=True))))
    except Stop as stop:
        print(f"holdfast: {stop}", file=sys.stderr)
        return stop.code
    except DeviceGone as gone:
        print(f"holdfast: {gone}", file=sys.stderr)
        return exit_code("device_gone")


def with_docstrings() -> None:
    """Begin this process again where Python leaves out docstrings (-OO): transformers reads its own, and fails without."""
    if sys.flags.optimize > 1:
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONOPTIMIZE"}
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], kept)


def leave_at_once(code: list[int]) -> None:
    """End the process with its exit code, where there is one, and take nothing apart that torch has loaded: that takes 0.2 s.

    Registered before all others, so that it is the last exit function.
    """
    if code:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code[0])


if __name__ == "__main__":
    with_docstrings()
    _code: list[int] = []
    atexit.register(leave_at_once, _code)
    _code.append(main(sys.argv[1:]))
    raise SystemExit(_code[0])
