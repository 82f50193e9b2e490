"""Collect what an ended attempt left behind: ending, last words, the step in flight, memory, disk, the kernel. Interprets nothing."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from holdfast.base.files import Json, is_full, last_line, read_json
from holdfast.base.safe_open import read_end
from holdfast.machine import clock
from holdfast.machine.host_memory import host_memory
from holdfast.machine.kernel_log import kernel_messages, marks, oom_kills_between
from holdfast.machine.place import Place
from holdfast.processes.attempt import Attempt
from holdfast.run.attempt import LaunchSpec, read_launch_spec
from holdfast.run.folder import RunFolder
from holdfast.run.types import FULL_DISK_BYTES, Ending, FailureReport

LINES = 60
_WINDOW_BYTES = 1 << 16
_AT_ONCE_S = 30.0  # after an end the machine's memory still says something about it


def collect(attempt: Attempt, run: RunFolder, ending: Ending) -> FailureReport:
    """Return the failure report of an attempt. The step in flight comes from the trainer's account, else from its pulse.

    Of several ranks it is of the one that ended first.
    """
    rank = int(ending.facts.get("rank") or 0)
    pulse, of_first = attempt.pulse(rank) or {}, attempt.pulse() or {}
    orders = read_launch_spec(attempt.folder) or LaunchSpec({})
    seen = read_json(attempt.folder / "ending.json") or {}
    ended, now = seen.get("ended"), clock.now()
    memory = host_memory() if ended is not None and abs(now - ended) < _AT_ONCE_S else {}
    step = ending.facts.get("step", pulse.get("step", of_first.get("step")))
    samples = ending.facts.get("samples") or pulse.get("samples") or ()
    return FailureReport(
        attempt=attempt.number,
        ending=ending,
        step=step,
        phase=pulse.get("phase", of_first.get("phase")),
        samples=tuple(samples),
        lines=tail(_log(attempt, ending)),
        committed_before=orders.committed_before,
        committed_after=run.committed(),
        died=ended or _last_sign(attempt, run, of_first) or orders.started or now,
        memory_available_bytes=memory.get("MemAvailable"),
        disk_free_bytes=free_bytes(run.path),
        pid=(read_json(attempt.folder / f"rank{rank}.json") or {}).get("identity", {}).get("pid"),
        memory_total_bytes=memory.get("MemTotal"),
        swap_free_bytes=memory.get("SwapFree"),
        oom_kills=oom_kills_between(orders.facts, seen or marks(Place())),
        kernel_messages=None if ending.kind == "interrupted" else _kernel_messages(orders, seen),
        machine=_machine(run),
    )


def _last_sign(attempt: Attempt, run: RunFolder, pulse: Json) -> float | None:
    """Return when an attempt whose end nobody saw was last seen to live: by its pulse, or its newest row; None where it left neither."""
    rows = (last_line(file) or {} for file in (run.steps_file, run.progress_file))
    times = [pulse.get("time"), *(row.get("time") for row in rows if row.get("attempt") == attempt.number)]
    return max((time for time in times if isinstance(time, int | float)), default=None)


def _log(attempt: Attempt, ending: Ending) -> Path:
    """Return the log of the rank that ended first, where it has one of its own, else the trainer's."""
    own = attempt.folder / f"rank{ending.facts.get('rank')}.log"
    return own if own.exists() else attempt.folder / "output.log"


def _kernel_messages(orders: LaunchSpec, seen: Json) -> tuple[str, ...] | None:
    return kernel_messages(orders.started or clock.now(), seen.get("ended"), logged=(orders.facts.get("logged"), seen.get("logged")))


def _machine(run: RunFolder) -> Json | None:
    """Return what a reader of the failure report wants to know of the machine; all of it is in machine.json."""
    facts = read_json(run.machine_file)
    if facts is None:
        return None
    gpus = [{name: gpu.get(name) for name in ("name", "arch", "memory_bytes")} for gpu in facts.get("gpus") or []]
    versions = {"kernel": (facts.get("os") or {}).get("kernel"), "torch": (facts.get("torch") or {}).get("version")}
    return versions | {"memory_bytes": facts.get("memory_bytes"), "gpus": gpus}


def free_bytes(folder: Path) -> int:
    """Return the bytes that a folder's disk takes; 0 where it reports room and refuses it, as under a quota."""
    free = shutil.disk_usage(folder).free
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as handle:
            written = handle.write(bytes(min(free, FULL_DISK_BYTES)))
    except OSError as error:
        return 0 if is_full(error) else free
    return free if written else 0


def last_text(log: Path) -> str:
    """Return the last 64 KiB of a log; empty where it cannot be read."""
    return read_end(log, _WINDOW_BYTES)


def tail(log: Path) -> tuple[str, ...]:
    """Return the last lines of a log, each cut to a sane length."""
    return tuple(line[:2000] for line in last_text(log).splitlines()[-LINES:])
