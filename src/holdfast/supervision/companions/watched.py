"""The processes beside a run that are no trainer: one that hangs is ended, another takes its place, and the user is told."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from holdfast.base.files import read_json
from holdfast.base.identity import Identity, alive
from holdfast.base.safe_open import open_log
from holdfast.base.units import span
from holdfast.processes.command_session import MOST_OUTPUT, bound_output
from holdfast.processes.signs_of_life import SignsOfLife, is_stopped
from holdfast.run.folder import RunFolder
from holdfast.run.holder import signal_holder

_LOOK_S = 0.5
_INSTEAD = {"shim": "what it looked after goes on", "writer": "another one takes its place"}


class Helper:
    """A child of ours that works beside a run. It is started again where it hangs, after twice as long each time.

    hung: told the seconds without a sign of life.
    """

    def __init__(self, command: Sequence[str], log: Path, limit_s: float, hung: Callable[[float], None]) -> None:
        self._command, self._log, self._limit_s, self._hung = command, log, limit_s, hung
        self.child = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with open_log(self._log) as output:  # in a session of its own, so that neither Ctrl-C nor a closed terminal reaches it
            child = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)
        self._signs = SignsOfLife(child.pid)
        return child

    def look(self, again: bool = True) -> int | None:
        """Return the exit code, None while it lives. One that hangs is ended and started `again`; what it prints is bounded."""
        with contextlib.suppress(OSError):
            if self._log.stat().st_blocks * 512 > MOST_OUTPUT:
                with open_log(self._log) as output:
                    bound_output(self._log, output)
        code = self.child.poll()
        if code is None and (silent := self._signs.silent_s()) > self._limit_s:
            self.child.kill()
            code = self.child.wait()
            self._hung(silent)
            if again:
                self._limit_s *= 2
                self.child, code = self._start(), None
        return code

    def end(self, within_s: float) -> int | None:
        """Return the exit code of one that has its last work to do; None where it had not ended within `within_s`."""
        until = time.monotonic() + within_s
        while (code := self.look(again=False)) is None and time.monotonic() < until:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.child.wait(max(0.0, min(_LOOK_S, until - time.monotonic())))
        return code


class Attendants:
    """The shims and writers of a run's attempts, named by their files."""

    def __init__(self, run: RunFolder, limit_s: float, tell: Callable[[str], None]) -> None:
        self._run, self._tell = run, tell
        self._limit_s = {"shim": limit_s, "writer": limit_s}
        self._signs: dict[int, SignsOfLife] = {}
        self._woken: set[int] = set()

    def look(self) -> None:
        """See what each shows; end one that hangs. A shim that was stopped is woken first: what it looks after needs it."""
        living = self._living()
        self._signs = {pid: self._signs.get(pid) or SignsOfLife(pid) for pid in living}
        for pid, (role, identity, lock) in living.items():
            silent = self._signs[pid].silent_s()
            if silent <= self._limit_s[role]:
                continue
            wakes = role == "shim" and pid not in self._woken and is_stopped(pid)
            if signal_holder(identity, lock, signal.SIGCONT if wakes else signal.SIGKILL):
                self._told(role, silent, wakes)
                self._limit_s[role] *= 1 if wakes else 2
            self._woken |= {pid} if wakes else set()
            self._signs[pid].begin()

    def _told(self, role: str, silent: float, wakes: bool) -> None:
        self._run.event("helper_hung", role=role, silent_s=round(silent, 1), done="woken" if wakes else "ended")
        done = "it was stopped, and is woken" if wakes else f"it was ended, {_INSTEAD[role]}"
        self._tell(f"the {role} gave no sign of life for {span(silent)}: {done}")

    def _living(self) -> dict[int, tuple[str, Identity, Path]]:
        found: dict[int, tuple[str, Identity, Path]] = {}
        for number in self._run.attempts()[-3:]:  # a writer of an attempt before may still hold the lock that the next one waits for
            folder = self._run.attempt(number)
            named = {
                "shim": (read_json(folder / "nurse.json"), self._run.trainer_lock),
                "writer": ((read_json(folder / "writer.json") or {}).get("identity"), self._run.writer_lock),
            }
            found |= {one["pid"]: (role, one, lock) for role, (one, lock) in named.items() if alive(one)}
        return found


@contextlib.contextmanager
def attended(run: RunFolder, limit_s: float, tell: Callable[[str], None]) -> Iterator[None]:
    """Watch the run's shims and writers while this lasts, so that none hangs for long. limit_s: without any sign of life, at least."""
    attendants = Attendants(run, limit_s, tell)
    with looking(attendants.look):
        yield


@contextlib.contextmanager
def looking(look: Callable[[], object]) -> Iterator[None]:
    """Have `look` called all the while, beside what the supervisor does: it may wait for the very process that hangs."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_LOOK_S):
            with contextlib.suppress(OSError, ValueError):  # the supervisor meets the same
                look()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
