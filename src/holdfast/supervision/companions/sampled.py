"""Start and end the process that keeps readings of the machine beside a run. What it does is machine/readings/keep.py's job."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator

from holdfast.base.child import module_command
from holdfast.run.folder import RunFolder

_PATIENCE_S = 2.0  # with a process that a driver holds; it ends when the driver lets go of it


@contextlib.contextmanager
def sampled(run: RunFolder) -> Iterator[None]:
    """Have the machine read while this lasts. A run is no worse where that fails: its readings are unknown."""
    journal = run.progress_file if run.command_file.exists() else run.steps_file
    command = module_command("holdfast.machine.readings.keep", run.path, journal.name)
    nothing = subprocess.DEVNULL
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=nothing, stderr=nothing, start_new_session=True)
    try:
        yield
    finally:
        assert child.stdin is not None
        child.stdin.close()
        child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_PATIENCE_S)
