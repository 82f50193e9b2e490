"""A standby for somebody else's command: its Python, waiting with its imports done (callback/standby.py). Decides no restart."""

from __future__ import annotations

import time
from pathlib import Path

from holdfast.base.files import Json, read_json, takes_nothing
from holdfast.callback.account import ATTEMPT
from holdfast.callback.standby import MODULES
from holdfast.machine.host_memory import host_memory
from holdfast.processes.attempt import Attempt
from holdfast.processes.standby import WORTH_S, WaitingShim, start_waiting
from holdfast.run.command import Command
from holdfast.run.folder import RunFolder
from holdfast.supervision.command.signs import ProgressSigns

_ROOM_TO_START = 4 << 30  # bytes of available memory; a Python that has imported torch and transformers holds under one GiB
_ROOM_TO_STAY = 2 << 30
_LOOK_EVERY_S = 1.0


class CommandStandby(WaitingShim):
    """At most one waiting process, made once in an attempt, where its callback has noted what the command's own process imports."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        self._looked = 0.0
        self._tried = 0
        self._first: tuple[int, int, float] | None = None  # the attempt, its first step that was seen, and when

    def consider(self, attempt: Attempt, command: Command, seen: ProgressSigns) -> None:
        """Start a standby for the attempt after this one where that is worth it, or let one end where memory has become short."""
        now = time.monotonic()
        if now - self._looked < _LOOK_EVERY_S or not command.standby or seen.source != "callback" or seen.step is None:
            return
        self._looked = now
        if self._first is None or self._first[0] != attempt.number:
            self._first = (attempt.number, seen.step, now)
        if self.shim is not None:
            if host_memory().get("MemAvailable", 0) < _ROOM_TO_STAY:
                self.discard()
        elif (
            self._tried != attempt.number
            and self._pays(seen, now)
            and host_memory().get("MemAvailable", 0) >= _ROOM_TO_START
            and (modules := self._noted(attempt.number))
        ):
            self._tried = attempt.number
            self._start(attempt, command, modules)

    def _pays(self, seen: ProgressSigns, now: float) -> bool:
        """True if there is a minute of training still to come: by the pace of this attempt, or where it has trained for one already."""
        assert self._first is not None and seen.step is not None
        _, first, began = self._first
        if seen.total is None or seen.step <= first:
            return now - began > WORTH_S
        return (seen.total - seen.step) * (now - began) / (seen.step - first) > WORTH_S

    def _noted(self, newest: int) -> Path | None:
        """Return what the newest attempt that was started plainly has noted of its imports; None where the command starts another process.

        A launcher's workers, and what a script starts, cannot be made ready before it.
        """
        for number in range(newest, 0, -1):
            file = self.run.attempt(number) / MODULES
            if (noted := read_json(file)) is not None:
                trains = (read_json(file.with_name("rank0.json")) or {}).get("identity") or {}
                return file if noted.get("pid") == trains.get("pid") else None
        return None

    def _start(self, attempt: Attempt, command: Command, modules: Path) -> None:
        launched: Json = read_json(attempt.folder / "launch.json") or {}
        env = (launched.get("env") or {}) | {ATTEMPT: str(self.run.attempt(attempt.number + 1))}  # it is to be known by that one's name
        orders = {"argv": launched.get("argv"), "env": env, "folder": command.folder, "modules": str(modules)}
        try:
            self.shim = start_waiting(self.run, "--command-standby", orders)
        except OSError as error:
            if not takes_nothing(error):
                raise
            return  # the command that lives is watched without one
        self.run.event("standby_started", holds="imports")
