"""Collect what an ended attempt left behind: ending, last words, the step in flight, memory and disk. Interprets nothing."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from holdfast.core.files import read_json
from holdfast.core.hostmemory import host_memory
from holdfast.core.run import RunFolder
from holdfast.core.types import Ending, Wreck
from holdfast.world.process import Attempt

LINES = 60
_WINDOW_BYTES = 1 << 16


def collect(attempt: Attempt, run: RunFolder, ending: Ending) -> Wreck:
    """The wreck of an attempt. The step in flight comes from the trainer's pulse, or from its own account where it gave one."""
    pulse = attempt.pulse() or {}
    launch = read_json(attempt.folder / "launch.json") or {}
    seen = read_json(attempt.folder / "ending.json") or {}
    step = ending.facts.get("step", pulse.get("step"))
    samples = ending.facts.get("samples") or pulse.get("samples") or ()
    return Wreck(
        attempt=attempt.number,
        ending=ending,
        step=step,
        phase=pulse.get("phase"),
        samples=tuple(samples),
        lines=tail(attempt.folder / "output.log"),
        committed_before=launch.get("committed_before", 0),
        committed_after=run.committed(),
        died=seen.get("ended") or time.time(),
        memory_available_bytes=host_memory().get("MemAvailable"),
        disk_free_bytes=shutil.disk_usage(run.path).free,
    )


def tail(log: Path) -> tuple[str, ...]:
    """The last lines of a log, cut to a sane length each."""
    try:
        with log.open("rb") as handle:
            size = handle.seek(0, os.SEEK_END)
            handle.seek(max(0, size - _WINDOW_BYTES))
            text = handle.read().decode(errors="replace")
    except FileNotFoundError:
        return ()
    return tuple(line[:2000] for line in text.splitlines()[-LINES:])
