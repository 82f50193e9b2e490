"""The parent of somebody else's command: starts one attempt, keeps its output within bounds, its exit code, and leaves no orphan.

    python -m holdfast.processes.command_shim ATTEMPT_FOLDER

Standard library only; decides nothing. It outlives the supervisor, and the run's lock is held as long as one of the two lives.
What the command starts and leaves behind becomes the shim's child (PR_SET_CHILD_SUBREAPER), whatever session it has gone to.
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
import sys
import termios
import time
from pathlib import Path
from typing import Any

from holdfast.base.identity import command_of, identify, myself
from holdfast.base.safe_open import lock_descriptor, open_log
from holdfast.base.wait import wait_for_end
from holdfast.processes.shim import reserve, take_lock, write_ending, write_whole
from holdfast.processes.tree import below

LOOK_EVERY_S = 0.5
MOST_OUTPUT, KEPT_HEAD, KEPT_TAIL = 64 << 20, 1 << 20, 16 << 20  # bytes of output.log
SETTLE_S = 3.0  # for what a command started to end after it
LEAVE_S = 5.0  # between SIGTERM and SIGKILL of what it left
_CHUNK = 1 << 16
_SUBREAPER = 36


def main(argv: list[str]) -> int:
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, lambda *_: None)  # not SIG_IGN, which the command would inherit
    attempt = Path(argv[0])
    launch = json.loads((attempt / "launch.json").read_text())
    lock = lock_descriptor(launch["trainer_lock"])
    if not take_lock(lock) or (attempt / "ending.json").exists():
        return 1  # another attempt lives, or a supervisor has called this one off
    write_whole(attempt / "nurse.json", dict(myself()))
    reserve(attempt)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    began = time.time()
    with open_log(attempt / "output.log") as output:
        master, slave = _terminal(launch.get("terminal"))
        command: subprocess.Popen[bytes] | None = None
        signal.signal(signal.SIGTERM, lambda *_: _pass_on(command))
        try:
            command = _start(launch, slave if slave is not None else output, slave is not None, lock)
        except OSError as error:
            facts = {"code": None, "could_not_start": f"{launch['argv'][0]}: {error.strerror}"}
            write_ending(attempt, facts | {"began": began, "ended": time.time()})
            return 0
        if slave is not None:
            os.close(slave)
        with contextlib.suppress(OSError):
            if identity := identify(command.pid):  # not where it is gone already
                write_whole(attempt / "rank0.json", {"identity": identity})
        code = _watch(command, master, attempt / "output.log", output)
        ended = time.time()
        left = _end_what_is_left()
        if master is not None:
            _pump(master, output)
    write_ending(attempt, {"code": code, "began": began, "ended": ended, "left": left[:2]})
    return 0


def _start(launch: dict[str, Any], output: Any, terminal: bool, lock: int) -> subprocess.Popen[bytes]:
    environment = {name: value for name, value in (os.environ | launch["env"]).items() if value is not None}

    def own_terminal() -> None:
        fcntl.ioctl(1, termios.TIOCSCTTY, 0)

    return subprocess.Popen(
        launch["argv"],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env=environment,
        cwd=launch["folder"],
        start_new_session=True,
        preexec_fn=own_terminal if terminal else None,
        pass_fds=(lock,),
    )


def _terminal(size: list[int] | None) -> tuple[int | None, int | None]:
    """A pseudo-terminal of that many lines and columns; none where none is wanted, or there are no more."""
    if not size:
        return None, None
    try:
        master, slave = os.openpty()
    except OSError:
        return None, None
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", size[0], size[1], 0, 0))
    os.set_blocking(master, False)
    return master, slave


def _pass_on(command: subprocess.Popen[bytes] | None) -> None:
    if command is not None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(command.pid, signal.SIGTERM)


def _watch(command: subprocess.Popen[bytes], master: int | None, log: Path, output: Any) -> int:
    """Wait for the command; its output is copied from its terminal, and kept within bounds. Its exit code."""
    while (code := command.poll()) is None:
        if master is not None:
            busy = _pump(master, output)
            wait_for_end((command.pid,), 0.0 if busy else 0.05)
        else:
            wait_for_end((command.pid,), LOOK_EVERY_S)
        cut_middle(log, output)
        _collect(command.pid)
    return code


def _pump(master: int, output: Any) -> bool:
    """Copy what the terminal has; whether there was anything."""
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


def cut_middle(log: Path, output: Any) -> None:
    """Keep head and tail of an output that has become too long. It is open for appending everywhere, so it may be cut under its writers."""
    with contextlib.suppress(OSError):
        size = os.fstat(output.fileno()).st_size
        if size <= MOST_OUTPUT:
            return
        with log.open("r+b") as handle:
            handle.seek(size - KEPT_TAIL)
            tail = handle.read(KEPT_TAIL)
            handle.truncate(KEPT_HEAD)
        left_out = size - KEPT_HEAD - KEPT_TAIL
        output.write(f"\n[holdfast: {left_out} bytes of output were left out here]\n".encode() + tail)
        output.flush()


def _collect(pid: int) -> None:
    """Take note of the ends of what the command left to us, so that no zombie stays."""
    for child in _children():
        if child != pid:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, os.WNOHANG)


def _children() -> list[int]:
    try:
        return [int(name) for name in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    except OSError:
        return []


def _end_what_is_left() -> list[str]:
    """Give what the command left a moment to end by itself, then end it; the names of what had to be."""
    until = time.monotonic() + SETTLE_S
    while (left := below(os.getpid())) and time.monotonic() < until:
        wait_for_end(left[:1], 0.1)
        _collect(0)
    names = [name for pid in left if (name := command_of(pid))]
    for number in (signal.SIGTERM, signal.SIGKILL):
        until = time.monotonic() + LEAVE_S
        for pid in below(os.getpid()):
            with contextlib.suppress(OSError):
                os.kill(pid, number)
        while below(os.getpid()) and time.monotonic() < until:
            time.sleep(0.05)
            _collect(0)
    return names


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
