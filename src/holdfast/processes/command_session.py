"""What somebody else's command runs in: a session, a terminal where ours is one, an output within bounds. It leaves no orphan.

Standard library only; decides nothing. What the command starts and leaves behind becomes the shim's child
(PR_SET_CHILD_SUBREAPER), whatever session it has gone to.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.base.identity import command_of, identify
from holdfast.base.wait import wait_for_end
from holdfast.machine import clock
from holdfast.processes.tree import below, cpu_seconds

LOOK_EVERY_S = 0.5
MOST_OUTPUT, KEPT_HEAD, KEPT_TAIL = 64 << 20, 1 << 20, 16 << 20  # bytes of output.log
_MOST_WITH_HOLE = 1 << 34  # bytes
_KEEP_SIZE, _PUNCH = 1, 2  # modes of fallocate(2)
SETTLE_S = 3.0  # for what a command started to end after it
EARLY_S = 60.0  # a command that ends well so soon, and leaves something that works, has gone to the background
QUIET_S = 60.0  # without output and work, after which what is followed is no training
_WORKS = 0.2  # of a processor
ENOUGH = "enough"  # made in an attempt's folder: what was left has done all there is to do, and is followed no further
LEAVE_S = 5.0  # between SIGTERM and SIGKILL of what it left
_CHUNK = 1 << 16
_SUBREAPER = 36


class CommandSession:
    """Around the command of one attempt, whose launch.json is `launch`."""

    def __init__(self, launch: dict[str, Any], attempt: Path, output: Any) -> None:
        self.launch, self.attempt, self.output = launch, attempt, output
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
        self.stdin: int | None = None
        self.began = time.monotonic()
        self.master, self.slave = _terminal(launch.get("terminal"))

    def streams(self) -> dict[str, Any]:
        """Return Popen's arguments for the command: its streams, folder and session."""
        output = self.slave if self.slave is not None else self.output

        def own_terminal() -> None:
            fcntl.ioctl(1, termios.TIOCSCTTY, 0)

        session = {"start_new_session": True, "preexec_fn": own_terminal if self.slave is not None else None}
        return {"stdin": self._input(), "stdout": output, "stderr": output, "cwd": self.launch["folder"], **session}

    def _input(self) -> int:
        """Open the file that was given as standard input, from where it stood; /dev/null where none was. Raises OSError."""
        file, at = self.launch.get("stdin") or (None, 0)
        if file is None:
            return subprocess.DEVNULL
        self.stdin = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        if at:
            os.lseek(self.stdin, at, os.SEEK_SET)
        return self.stdin

    def started(self, pid: int) -> None:
        """Write down who the command is; not where it is gone already."""
        if self.stdin is not None:
            os.close(self.stdin)
        if self.slave is not None:
            os.close(self.slave)
        self._name(pid)

    def _name(self, pid: int, **facts: Any) -> None:
        """Write down who is the command from now on."""
        with contextlib.suppress(OSError):
            if identity := identify(pid):
                write_whole(self.attempt / "rank0.json", {"identity": identity, **facts})

    def look(self, living: list[int]) -> None:
        """Wait for its end, a moment at most; its output is copied from its terminal, and kept within bounds."""
        if self.master is not None:
            busy = _pump(self.master, self.output)
            wait_for_end(living, 0.0 if busy else 0.05)
        else:
            wait_for_end(living, LOOK_EVERY_S)
        bound_output(self.attempt / "output.log", self.output)
        _collect(*living)

    def end(self, code: int) -> dict[str, Any]:
        """Follow what goes on in the background where the command ended well at once, end what it left then, and return what was seen.

        fell: the exit code of what went there, printed and ended badly before it could be followed.
        """
        may_follow, followed = code == 0 and time.monotonic() - self.began < EARLY_S, {}
        while True:
            before, worked = self._output_bytes(), cpu_seconds(below(os.getpid()))
            codes = _settle(self._output_bytes)
            printed, left = self._output_bytes() > before, below(os.getpid())
            works = printed or cpu_seconds(left) - worked > _WORKS * SETTLE_S
            if not (may_follow and works and left) or (self.attempt / ENOUGH).exists():
                break
            self._name(left[0], followed=command_of(left[0]))
            code = self._follow(left[0])
            may_follow, followed = code == 0, {"code": code, "ended": clock.now()}
        fell = {"fell": next(filter(None, codes))} if may_follow and printed and any(codes) else {}
        names = _end_what_is_left()
        self._output_bytes()
        cut_middle(self.attempt / "output.log", self.output)
        return {"left": names[:2], "left_printed": printed and bool(names), **followed, **fell}

    def _follow(self, pid: int) -> int:
        """Wait for the end of what went to the background, as for the command's own; its exit code, 0 where it is followed no further."""
        seen, since = (0, 0.0), time.monotonic()
        while not (self.attempt / ENOUGH).exists() and time.monotonic() - since < QUIET_S:
            self.look([pid])
            with contextlib.suppress(ChildProcessError):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    return os.waitstatus_to_exitcode(status)
            now = (self._output_bytes(), cpu_seconds([pid, *below(pid)]))
            if now[0] != seen[0] or now[1] - seen[1] > _WORKS * LOOK_EVERY_S:
                seen, since = now, time.monotonic()
        return 0

    def _output_bytes(self) -> int:
        """Return the bytes of output so far, all that its terminal holds included."""
        if self.master is not None:
            _pump(self.master, self.output)
        try:
            return os.fstat(self.output.fileno()).st_size
        except OSError:
            return 0


def _terminal(size: list[int] | None) -> tuple[int | None, int | None]:
    """Open a pseudo-terminal of that many lines and columns; (None, None) where none is wanted, or there are no more."""
    if not size:
        return None, None
    try:
        master, slave = os.openpty()
    except OSError:
        return None, None
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", size[0], size[1], 0, 0))
    os.set_blocking(master, False)
    return master, slave


def _pump(master: int, output: Any) -> bool:
    """Copy what the terminal has; return whether there was anything."""
    seen = False
    for _ in range(64):
        try:
            data = os.read(master, _CHUNK)
        except BlockingIOError:
            return seen
        except OSError as error:
            if error.errno == errno.EIO:  # nobody has the other end any more
                return seen
            raise
        if not data:
            return seen
        seen = True
        with contextlib.suppress(OSError):  # a full disk takes no more; the command goes on
            output.write(data)
            output.flush()
    return seen


def bound_output(log: Path, output: Any) -> None:
    """Free the disk of the middle of an output that has become too long, while its writers write on.

    A hole loses nothing that is written meanwhile. Where the file system makes none, and beyond 16 GiB, the middle is cut out.
    """
    with contextlib.suppress(OSError):
        found = os.fstat(output.fileno())
        if found.st_blocks * 512 <= MOST_OUTPUT:
            return
        if found.st_size > _MOST_WITH_HOLE or not _punch_hole(log, KEPT_HEAD, found.st_size - KEPT_HEAD - KEPT_TAIL):
            cut_middle(log, output)


def _punch_hole(file: Path, start: int, length: int) -> bool:
    """Give these bytes back to the file system, which reads them as zeros; return whether it did."""
    allocate = getattr(ctypes.CDLL(None), "fallocate64", None)  # musl and macOS have none of that name
    if allocate is None or length <= 0:
        return False
    with file.open("r+b") as handle:
        return bool(allocate(handle.fileno(), ctypes.c_int(_KEEP_SIZE | _PUNCH), ctypes.c_int64(start), ctypes.c_int64(length)) == 0)


def cut_middle(log: Path, output: Any) -> None:
    """Keep head and tail of an output that has become too long, with a line between them.

    It is open for appending everywhere, so it may be cut under its writers: what they write between the copy and the cut is lost.
    """
    with contextlib.suppress(OSError):
        size = os.fstat(output.fileno()).st_size
        if size <= MOST_OUTPUT:
            return
        with log.open("r+b") as handle:
            handle.seek(size - KEPT_TAIL)
            tail = handle.read()
            left_out = size - KEPT_HEAD - KEPT_TAIL
            handle.truncate(KEPT_HEAD)
        output.write(f"\n[holdfast: {left_out} bytes of output were left out here]\n".encode() + tail)
        output.flush()


def _collect(*spared: int) -> list[int]:
    """Take note of the ends of what the command left to us, so that no zombie stays; return their exit codes."""
    codes = []
    for child in _children():
        if child not in spared:
            with contextlib.suppress(ChildProcessError):
                ended, status = os.waitpid(child, os.WNOHANG)
                codes += [os.waitstatus_to_exitcode(status)] if ended else []
    return codes


def _children() -> list[int]:
    try:
        return [int(name) for name in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    except OSError:
        return []


def _settle(meanwhile: Callable[[], object]) -> list[int]:
    """Give what the command left a moment to end by itself; return the exit codes of what did."""
    until, codes = time.monotonic() + SETTLE_S, _collect()
    while (left := below(os.getpid())) and time.monotonic() < until:
        wait_for_end(left[:1], 0.1)
        meanwhile()
        codes += _collect()
    return codes


def _end_what_is_left() -> list[str]:
    """End what the command left; return the names of what had to be ended."""
    names = [name for pid in below(os.getpid()) if (name := command_of(pid))]
    for number in (signal.SIGTERM, signal.SIGKILL):
        until = time.monotonic() + LEAVE_S
        for pid in below(os.getpid()):
            with contextlib.suppress(OSError):
                os.kill(pid, number)
        while below(os.getpid()) and time.monotonic() < until:
            time.sleep(0.05)
            _collect()
    return names


def write_whole(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON file, whole or not at all."""
    temporary = path.with_suffix(".tmp")
    try:
        temporary.write_text(json.dumps(value))
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
