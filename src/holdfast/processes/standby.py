"""The supervisor's hold on a standby: a shim and a trainer that wait for an attempt to become theirs. Decides no restart."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Literal

from holdfast.base.child import module_command
from holdfast.base.files import Json, last_line, takes_nothing, write_json
from holdfast.base.safe_open import open_log
from holdfast.processes.tree import below, waits_in
from holdfast.run.folder import RunFolder
from holdfast.run.timeline import read_timeline, settings_at
from holdfast.run.types import Launch

_LOOK_EVERY_S = 1.0
_REST_S = 5.0  # after a takeover, before the next one starts beside the new trainer
_ENDS_S = 10.0
_STOPPED = ("T", "t")  # by a signal, or by a debugger
WORTH_S = 60.0  # of training still to come: a standby costs about ten seconds of one core to start

Mode = Literal["off", "imports", "model"]


class WaitingShim:
    """At most one shim that waits, with a process beside it, for an attempt to become theirs."""

    shim: subprocess.Popen[bytes] | None = None

    def waits(self) -> bool:
        return self.shim is not None and self.shim.poll() is None

    def hand_over(self, attempt: Path) -> subprocess.Popen[bytes] | None:
        """Give the attempt, whose launch.json is written, to the shim that waits; None where there is none to take it."""
        shim = self.shim
        if shim is None or not self.waits() or is_stopped(shim) or not give(shim, attempt):
            self.discard()
            return None
        self.shim = None
        return shim

    def discard(self) -> None:
        """Let what waits end."""
        if self.shim is not None:
            let_end(self.shim)
        self.shim = None


class Standby(WaitingShim):
    """At most one pair of waiting processes. It belongs to one launch; they end with the supervisor, whose pipe they read."""

    def __init__(self, run: RunFolder, mode: Mode, always: bool) -> None:
        """Take the run and how a standby waits. `always`: from the first committed step on; else where the rest is long enough to pay."""
        self.run, self.mode, self.always = run, mode, always
        self._looked = 0.0
        self.launch: Launch | None = None

    def __enter__(self) -> Standby:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.discard()

    def consider(self, launch: Launch) -> None:
        """Start a standby for `launch` where none waits and one is worth its start. Called all the while an attempt trains."""
        now = time.monotonic()
        if self.mode == "off" or now - self._looked < _LOOK_EVERY_S:
            return
        self._looked = now
        if self.waits() or not self._pays():
            return
        try:
            self._start(launch)
        except OSError as error:
            if not takes_nothing(error):
                raise
            return  # the trainer that lives is watched without one
        self.run.event("standby_started", holds=self.mode)

    def _pays(self) -> bool:
        row = last_line(self.run.steps_file)
        if row is None:
            return False
        steps = settings_at(read_timeline(self.run.timeline_file), row["step"]).steps
        return self.always or (steps - row["step"]) * row["seconds"] > WORTH_S

    def _start(self, launch: Launch) -> None:
        argv = [*launch.argv[:-1], "standby", str(self.run.path), self.mode]
        self.shim = start_waiting(self.run, "--standby", {"argv": argv, "env": launch.env, "devices": launch.devices})
        self.launch = launch

    def take_over(self, attempt: Path, launch: Launch) -> subprocess.Popen[bytes] | None:
        """Give the attempt, whose launch.json is written, to the standby; return its shim, or None when none fits or it is gone."""
        if launch != self.launch:
            self.discard()
        if shim := self.hand_over(attempt):
            self._looked = time.monotonic() + _REST_S
        return shim


def start_waiting(run: RunFolder, how: str, orders: Json) -> subprocess.Popen[bytes]:
    """Start a shim that waits for an attempt, as `how` says (processes/shim.py). Raises OSError."""
    write_json(run.standby_file, orders | {"trainer_lock": str(run.trainer_lock)}, durable=False)
    with open_log(run.path / "standby.log", anew=True) as log:
        argv = module_command("holdfast.processes.shim", how, run.standby_file)
        return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True)


def give(shim: subprocess.Popen[bytes], attempt: Path) -> bool:
    """Give the attempt to a shim that waits; return whether it is there to read it."""
    assert shim.stdin is not None
    try:
        shim.stdin.write(f"{attempt}\n".encode())
        shim.stdin.close()
    except OSError:
        return False
    return True


def let_end(shim: subprocess.Popen[bytes]) -> None:
    """Let a shim that waits end with its process; kill them where one is stopped, or does not end."""
    theirs = below(shim.pid)
    if shim.stdin is not None:
        with contextlib.suppress(OSError):
            shim.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        shim.wait(0.0 if is_stopped(shim) else _ENDS_S)
    forced = shim.poll() is None
    shim.kill()
    shim.wait()
    for pid in theirs:
        if forced or waits_in(pid).get("state") in _STOPPED:  # a stopped one does not see that its shim is gone
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def is_stopped(shim: subprocess.Popen[bytes]) -> bool:
    """True if a signal has stopped it, or what waits below it: what it is given would not be taken up."""
    return any(waits_in(pid).get("state") in _STOPPED for pid in (shim.pid, *below(shim.pid)))
