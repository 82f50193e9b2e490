"""The supervisor's hold on a standby: a shim and a trainer that wait for an attempt to become theirs. Decides no restart."""

from __future__ import annotations

import contextlib
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Literal

from holdfast.base.child import module_command
from holdfast.base.files import last_line, takes_nothing, write_json
from holdfast.base.safe_open import open_log
from holdfast.run.folder import RunFolder
from holdfast.run.timeline import read_timeline, settings_at
from holdfast.run.types import Launch

_LOOK_EVERY_S = 1.0
_REST_S = 5.0  # after a takeover, before the next one starts beside the new trainer
_WORTH_S = 60.0  # of training still to come: a standby costs about ten seconds of one core to start

Mode = Literal["off", "imports", "model"]


class Standby:
    """At most one pair of waiting processes. It belongs to one launch; they end with the supervisor, whose pipe they read."""

    def __init__(self, run: RunFolder, mode: Mode, always: bool) -> None:
        """Take the run and how a standby waits. `always`: from the first committed step on; else where the rest is long enough to pay."""
        self.run, self.mode, self.always = run, mode, always
        self._looked = 0.0
        self.launch: Launch | None = None
        self.shim: subprocess.Popen[bytes] | None = None

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
        return self.always or (steps - row["step"]) * row["seconds"] > _WORTH_S

    def _start(self, launch: Launch) -> None:
        argv = [*launch.argv[:-1], "standby", str(self.run.path), self.mode]
        orders = {"argv": argv, "env": launch.env, "devices": launch.devices, "trainer_lock": str(self.run.trainer_lock)}
        write_json(self.run.standby_file, orders, durable=False)
        with open_log(self.run.path / "standby.log", anew=True) as log:
            self.shim = subprocess.Popen(
                module_command("holdfast.processes.shim", "--standby", self.run.standby_file),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.launch = launch

    def waits(self) -> bool:
        return self.shim is not None and self.shim.poll() is None

    def take_over(self, attempt: Path, launch: Launch) -> subprocess.Popen[bytes] | None:
        """Give the attempt, whose launch.json is written, to the standby; its shim, or None when none fits or it is gone."""
        shim = self.shim
        if shim is None or shim.stdin is None or not self.waits() or launch != self.launch:
            self.discard()
            return None
        try:
            shim.stdin.write(f"{attempt}\n".encode())
            shim.stdin.close()
        except OSError:
            self.discard()
            return None
        self.shim = self.launch = None
        self._looked = time.monotonic() + _REST_S
        return shim

    def discard(self) -> None:
        """Let a waiting pair end."""
        if self.shim is not None:
            if self.shim.stdin is not None:
                with contextlib.suppress(OSError):
                    self.shim.stdin.close()
            self.shim.wait()
        self.shim = self.launch = None
