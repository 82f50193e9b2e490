"""Entry of every child that needs torch: `python -m holdfast.trainer JOB ...`. A job imports only what it needs."""

from __future__ import annotations

import contextlib
import faulthandler
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.base.errors import DeviceGone, Stop
from holdfast.run.outcomes import exit_code
from holdfast.trainer.common.libraries import libraries


class Work(NamedTuple):
    """A job: the function in a module of `trainer/jobs/` that does it, and how its arguments are read.

    with_libraries: import transformers and PEFT with less work before it.
    """

    module: str
    function: str
    arguments: tuple[Callable[[str], Any], ...]
    with_libraries: bool = True


JOBS = {
    "train": Work("train", "train", (Path, int), with_libraries=False),  # imports them once registered
    "join": Work("join", "join", (Path, int), with_libraries=False),
    "standby": Work("standby", "stand_by", (Path, str)),
    "trial": Work("trial", "trial", (Path, Path)),
    "trials": Work("trial", "host_trials", (Path,)),
    "evaluate": Work("evaluate", "evaluate", (Path, int)),
    "chat": Work("chat", "chat", (Path,)),
    "account": Work("account", "account", ()),
    "laboratory": Work("laboratory.host", "host_experiments", (Path,)),
    "losses": Work("losses", "losses", (Path,)),
    "measure": Work("measure", "measure", (Path,)),
    "suite": Work("suite", "suite", (Path,)),
    "serve": Work("serve", "serve", (Path,)),
    "merge": Work("merge", "merge", (Path,)),
    "widen": Work("widen", "widen", (Path, Path), with_libraries=False),
    "probe": Work("torch_facts", "probe", (), with_libraries=False),
    "probes": Work("probes.host", "probe_functions", (Path, int), with_libraries=False),
}


MANAGEMENT = ("amdsmi", "pynvml")  # torch imports one of them if it is there, and needs neither; both have hung and crashed in that


def main(argv: list[str]) -> int:
    """Do one job; the exit code. A GPU that is gone ends it with a sentence, for the parent to wait; so does what it refuses."""
    faulthandler.enable()
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


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
