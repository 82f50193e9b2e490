"""Start and end the process that keeps readings of the machine beside a run. What it does is machine/readings/keep.py's job."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Callable, Iterator

from holdfast.base.child import module_command
from holdfast.base.signal_names import ended_by
from holdfast.processes.signs_of_life import is_stopped
from holdfast.run.folder import RunFolder
from holdfast.supervision.companions.watched import looking

_PATIENCE_S = 2.0  # with a process that a driver holds; it ends when the driver lets go of it
_AGAIN_S = 30.0  # before another one takes the place of the first that ended, and after that twice as long each time


class SamplerProcess:
    """The process that reads the machine. One that was stopped is woken; one that ended is told once, and begun again."""

    def __init__(self, run: RunFolder, tell: Callable[[str], None]) -> None:
        journal = run.progress_file if run.command_file.exists() else run.steps_file
        self._command = module_command("holdfast.machine.readings.keep", run.path, journal.name)
        self._tell, self._wait_s, self._told = tell, _AGAIN_S, False
        self._start()

    def _start(self) -> None:
        nothing = subprocess.DEVNULL
        self.child = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=nothing, stderr=nothing, start_new_session=True)
        self._began = time.monotonic()

    def look(self) -> None:
        """Look at it: wake one that was stopped, let another take the place of one that ended."""
        code = self.child.poll()
        if code is None and is_stopped(self.child.pid):
            self.child.send_signal(signal.SIGCONT)
        if code is None or time.monotonic() - self._began < self._wait_s:
            return
        if not self._told:
            self._told = True
            self._tell(f"the process that reads this machine {ended_by(code)}: another one takes its place; the run itself is whole")
        self.end()
        self._wait_s *= 2
        self._start()

    def end(self) -> None:
        """End it; wait for a moment, no longer."""
        assert self.child.stdin is not None
        self.child.stdin.close()
        self.child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.child.wait(_PATIENCE_S)


@contextlib.contextmanager
def sampled(run: RunFolder, tell: Callable[[str], None]) -> Iterator[None]:
    """Have the machine read while this lasts. A run is no worse where that fails: its readings are unknown."""
    sampler = SamplerProcess(run, tell)
    try:
        with looking(sampler.look):
            yield
    finally:
        sampler.end()
