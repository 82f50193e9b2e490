"""A command whose run folder, or attempt, was removed while it runs: it goes on to its end, which its shim tells by its own."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from holdfast.base.files import Json, read_json, write_json
from holdfast.base.wait import wait_for_end
from holdfast.processes.attempt import Attempt
from holdfast.processes.process import LOOK_EVERY_S
from holdfast.processes.tree import below
from holdfast.run.folder import RunFolder

_FILES = ("launch.json", "ending.json", "wreck.json")
_BACK_S, _LOOK_S = 1.0, 0.05  # for a folder that is being moved to be found again


class FolderGone(Exception):
    """The run folder is not there any more. code: of the command, which went on to its end; None where nobody knows it."""

    def __init__(self, code: int | None) -> None:
        super().__init__("the run folder was removed")
        self.code = code


class KeptAttempts:
    """Keeps in memory what is written of a run's attempts: the command may remove it, and its deaths in a row are counted by it."""

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self._files: dict[tuple[int, str], Json] = {}  # by number and name: a run folder may be moved

    def read(self) -> None:
        """Read what is written of the attempts so far."""
        names = [(number, name) for number in self._run.attempts() for name in _FILES]
        self._files |= {at: facts for at in names if (facts := read_json(self._run.attempt(at[0]) / at[1])) is not None}

    def put_back(self) -> None:
        """Write again what was removed. Raises OSError, also where the run folder itself is gone."""
        for (number, name), facts in self._files.items():
            folder = self._run.attempt(number)
            if not folder.is_dir():
                self._run.made(folder)
            if not (folder / name).exists():
                write_json(folder / name, facts)


def is_gone(folder: Path) -> bool:
    """True if a folder is not there, and does not come back at once."""
    until = time.monotonic() + _BACK_S
    while not folder.is_dir():
        if time.monotonic() > until:
            return True
        time.sleep(_LOOK_S)
    return False


def outlive(attempt: Attempt, living: Mapping[str, int], stop: Callable[[], int], stop_s: float) -> int | None:
    """Wait for the end of a command of which nothing is read any more; return its exit code, None where nobody knows it.

    living: its processes as they were seen last; stop, stop_s: as of SupervisedRun and Command.
    """
    shim = attempt.shim.pid if attempt.shim is not None else living.get("shim", living.get("trainer"))
    asked: float | None = None
    while shim is not None and _is_there(attempt, shim):
        wish = stop()
        late = asked is not None and time.monotonic() - asked > stop_s
        if wish and (asked is None or wish == 2 or late):
            asked = asked or time.monotonic()
            for pid in below(shim):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL if wish == 2 or late else signal.SIGTERM)
        wait_for_end([shim], LOOK_EVERY_S)
    return None if attempt.shim is None or attempt.shim.returncode < 0 else attempt.shim.returncode


def _is_there(attempt: Attempt, pid: int) -> bool:
    return Path(f"/proc/{pid}").exists() if attempt.shim is None else attempt.shim.poll() is None
