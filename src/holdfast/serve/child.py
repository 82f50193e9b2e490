"""The program that generates, as a child that is watched: one that ends or hangs is told, ended and replaced."""

from __future__ import annotations

import contextlib
import http.client
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import orjson

from holdfast.base.errors import BLOCKED, Stop
from holdfast.base.files import Json
from holdfast.base.signal_names import ended_by
from holdfast.processes.ending import end_gently
from holdfast.processes.signs_of_life import SignsOfLife, is_stopped

PATIENCE_S = 600  # an engine that works may take for one part of an answer
_LEAVING_S = 1.0
_LOOK_S, _SILENT_S = 0.5, 30.0  # of a program that is asked: one that computes shows it many times a second
_PAUSE_MOST_S = 60.0  # between two starts that fail


class Child:
    """The program that generates, while it lives. One that ended, was stopped, or does nothing for long while it is asked is ended,
    told and replaced, whether somebody asks or not.

    restarts: how often another one took its place.
    """

    def __init__(self, command: list[str], log: Path, env: Mapping[str, str]) -> None:
        self._command, self._path, self._env = command, log, dict(env)
        self._lock, self._asked, self._over = threading.Lock(), 0, threading.Event()
        self._hung, self._trouble, self.restarts = "", "", 0
        self._pause_s, self._again_at = _LOOK_S, 0.0
        self._start()
        self._watching = threading.Thread(target=self._watch, daemon=True)
        self._watching.start()

    @property
    def trouble(self) -> str:
        """Why it cannot answer now; "" where it can."""
        if not self._trouble and self.process.poll() is not None:
            return "the model's process has ended"
        return self._trouble or ("the model's process was stopped" if is_stopped(self.process.pid) else "")

    def _start(self) -> None:
        """Start the engine. Raises Stop(1) where it ends or hangs before it can answer."""
        self._log = self._path.open("ab")
        self.process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, env=self._env)
        self._signs = SignsOfLife(self.process.pid)
        self.ready = _ready(self.process, self._path, self._signs, self._over)
        self._heard = time.monotonic()

    def _replace(self) -> None:
        """Start another one in place of one that has ended. Raises RuntimeError, with the reason, where that fails."""
        if time.monotonic() < self._again_at:
            raise RuntimeError(self._trouble)
        if not self._trouble:
            self._tell(f"the model's process {ended_by(self.process.wait())}; it is started again")
        _end(self.process, self._log)
        try:
            self._start()
        except (Stop, OSError) as error:
            why = getattr(error, "message", str(error))
            self._pause_s = min(2 * self._pause_s, _PAUSE_MOST_S)
            self._again_at = time.monotonic() + self._pause_s
            self._tell(f"{why}; it is started again in {self._pause_s:.0f} s")
            raise RuntimeError(self._trouble) from None
        self._trouble, self._pause_s = "", _LOOK_S
        _say("the model's process was started again, and answers")
        self.restarts += 1

    def _tell(self, trouble: str) -> None:
        self._trouble = trouble
        _say(trouble)

    @contextlib.contextmanager
    def asked(self) -> Iterator[Callable[[], None]]:
        """Hold the engine while it is asked for an answer; what is yielded is called with each part of it.

        Raises RuntimeError, with the reason, where it ended or hung meanwhile.
        """
        with self._lock:
            if self.process.poll() is not None:
                self._replace()
            if not self._asked:
                self._signs.begin()
                self._hear()
            self._asked, process, self._hung = self._asked + 1, self.process, ""
        try:
            yield self._hear
        except (OSError, RuntimeError, http.client.HTTPException):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_LEAVING_S)  # what it said last may come before its end does
            if process.poll() is None and not self._hung:
                raise
            raise RuntimeError(self._hung or "the model's process has ended; it is started again") from None
        finally:
            with self._lock:
                self._asked -= 1

    def _hear(self) -> None:
        self._heard = time.monotonic()

    def _watch(self) -> None:
        while not self._over.wait(_LOOK_S):
            with self._lock, contextlib.suppress(RuntimeError):  # who asks is told the same
                if self.process.poll() is None:
                    self._end_hanging()
                if self.process.poll() is not None and not self._asked:
                    self._replace()

    def _end_hanging(self) -> None:
        """End one that gives no sign of life: while it is asked, or because it was stopped. One that has nothing to do gives none."""
        if not (self._asked or is_stopped(self.process.pid)):
            self._signs.begin()
            return
        silent, unheard = self._signs.silent_s(), time.monotonic() - self._heard if self._asked else 0.0
        if silent > _SILENT_S or unheard > PATIENCE_S:
            what = f"no sign of life for {silent:.0f} s" if silent > _SILENT_S else f"no part of an answer for {unheard:.0f} s"
            self._hung = f"the model's process gave {what}; it was ended, and is started again"
            self._tell(self._hung)
            self.process.kill()
            self.process.wait()

    def close(self) -> None:
        self._over.set()
        self._watching.join()
        _end(self.process, self._log)


def _ready(child: subprocess.Popen[bytes], log: Path, signs: SignsOfLife, over: threading.Event) -> Json:
    """Read the first line that a child prints once it can answer. Raises Stop(1) where it ends or hangs before, or `over` is set."""
    assert child.stdout
    while not select.select([child.stdout], [], [], _LOOK_S)[0]:
        if over.is_set() or (silent := signs.silent_s()) > _SILENT_S:
            child.kill()
            child.wait()
            raise Stop(
                BLOCKED, "the model's process " + ("was ended" if over.is_set() else f"hung at its start ({silent:.0f} s of silence)")
            )
    if line := child.stdout.readline():
        found: Json = orjson.loads(line)
        return found
    why, hint = _why_ended(log.read_text(errors="replace"))
    raise Stop(BLOCKED, f"the model's process {ended_by(child.wait())}: {why[:300]}", hint)


def _why_ended(log: str) -> tuple[str, str]:
    """Return the reason an engine's log ends with, and what to do: the child's own sentence and hint where it ended with these."""
    lines = log.strip().splitlines() or ["it printed nothing"]
    at = max((at for at, line in enumerate(lines) if line.startswith("holdfast: ")), default=-1)
    hint = next((line for line in lines[at:] if at >= 0 and line.startswith("  -> ")), "try the other --engine")
    return lines[at].removeprefix("holdfast: "), hint.removeprefix("  -> ")


def _say(text: str) -> None:
    """Tell the terminal, where there is one: without it the engine is watched all the same."""
    with contextlib.suppress(OSError, ValueError):
        print(f"holdfast: {text}", file=sys.stderr, flush=True)


def _end(child: subprocess.Popen[bytes], log: object) -> None:
    with contextlib.suppress(OSError):
        assert child.stdin
        child.stdin.close()
    end_gently(child, 10)
    if child.stdout:
        child.stdout.close()
    log.close()  # type: ignore[attr-defined]
