"""The parent of an attempt: starts it, keeps its exit code, looks after what goes on beside it. Standard library only; decides nothing.

    python -m holdfast.processes.shim ATTEMPT_FOLDER               a trainer, with a writer beside it
    python -m holdfast.processes.shim --command ATTEMPT_FOLDER     somebody else's command, in a session of its own
    python -m holdfast.processes.shim --standby ORDERS             waits, with a trainer that is ready, for an attempt on standard input
    python -m holdfast.processes.shim --command-standby ORDERS     the same with the command's Python (callback/standby.py)

It outlives the supervisor. The run's trainer lock is taken here and inherited by what it starts, so the kernel holds it exactly as
long as one of the two lives, and no second trainer can start.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any, Protocol

from holdfast.base.identity import identify, myself
from holdfast.base.safe_open import lock_descriptor, open_log
from holdfast.base.wait import wait_for_end
from holdfast.machine import clock
from holdfast.machine.kernel_log import marks
from holdfast.machine.place import Place
from holdfast.processes.command_session import CommandSession, write_whole
from holdfast.processes.rank_environment import recorder_variables
from holdfast.processes.trainers import Trainers, WaitingCommand

LOOK_EVERY_S = 0.5
WRITER_PAUSE_S = (0.1, 5.0)
_LOCK_S = 20.0  # for what the attempt before left, which may still be ending
_RESERVED, _ENDING_BYTES = ".ending.reserved", 512


class Beside(Protocol):
    """What is done beside the processes of an attempt."""

    def started(self, pid: int) -> None: ...
    def look(self, living: list[int]) -> None: ...
    def end(self, code: int) -> dict[str, Any]: ...


def main(argv: list[str]) -> int:
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, (lambda *_: None) if argv[0].startswith("--command") else signal.SIG_IGN)  # a command would inherit SIG_IGN
    if not argv[0].endswith("-standby"):
        try:
            return _attend(Path(argv[-1]), None, None, foreign=argv[0] == "--command")
        except OSError as error:  # the supervisor finds an attempt that never started, and tells of it
            print(f"holdfast: {argv[-1]} could not be begun: {error}", file=sys.stderr, flush=True)
            return 1
    orders = json.loads(Path(argv[1]).read_text())
    lock = lock_descriptor(orders["trainer_lock"])
    foreign = argv[0] == "--command-standby"
    waiting = WaitingCommand(orders, _environment(orders), lock) if foreign else None
    trainers = waiting or Trainers(orders["argv"], orders.get("devices", [0]), _environment(orders), (lock,), stdin=subprocess.PIPE)
    names = Path(argv[1]).with_name("standby_pids.json")
    with contextlib.suppress(OSError):
        write_whole(names, {"standby shim": myself(), "standby": identify(trainers.processes[0].pid)})
    attempt = sys.stdin.readline().strip()
    names.unlink(missing_ok=True)
    code = _attend(Path(attempt), lock, trainers, foreign) if attempt else 0
    trainers.kill()
    return code


def _attend(attempt: Path, lock: int | None, standby: Trainers | None, foreign: bool = False) -> int:
    """See an attempt through to its end, with the trainers that stood by where there are some."""
    launch = json.loads((attempt / "launch.json").read_text())
    lock = lock_descriptor(launch["trainer_lock"]) if lock is None else lock
    if not take_lock(lock, attempt / "ending.json"):
        return 1  # another trainer lives, or a new supervisor has called this attempt off
    write_whole(attempt / "nurse.json", dict(myself()))
    name = (attempt / "nurse.json").stat()
    reserve(attempt)
    environment = _environment(launch)
    if foreign or (len(launch.get("devices", ())) > 1 and launch.get("settings", {}).get("device") != "cpu"):  # on a CPU there is no NCCL
        environment |= recorder_variables(attempt, environment)
    times: dict[str, Any] = {"began": clock.now()}
    trainers = standby
    signal.signal(signal.SIGTERM, lambda *_: trainers.send_signal(signal.SIGTERM) if trainers else None)
    with open_log(attempt / "output.log") as output:
        session = CommandSession(launch, attempt, output) if foreign else None
        if isinstance(standby, WaitingCommand) and session:
            times["stood_by"] = standby.become(launch, environment, session.slave, attempt)
        if not (times.get("stood_by") or (standby and not session and standby.tell(f"{int(attempt.name)}\n"))):
            try:
                streams = session.streams() if session else {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
                trainers = Trainers(launch["argv"], launch.get("devices", [0]), environment, (lock,), **streams)
            except OSError as error:
                if not foreign:
                    raise
                told = f"{error.filename or launch['argv'][0]}: {error.strerror}"
                write_ending(attempt, {"code": None, "could_not_start": told, **times, "ended": clock.now()})
                os.close(lock)
                return 0
        assert trainers is not None
        beside: Beside = session or Writer(launch["writer_argv"], environment, output, attempt / "writer.json")
        beside.started(trainers.processes[0].pid)
        while (code := trainers.poll()) is None:
            beside.look(trainers.living)
        times["ended"] = clock.now()
        facts = beside.end(code)
    facts |= trainers.limits[trainers.guilty] | marks(Place())  # who reads it may come days later, and from elsewhere
    ranks = {} if len(trainers.processes) == 1 else {"rank": trainers.guilty, "codes": [one for _, one in sorted(trainers.codes.items())]}
    written = False
    with contextlib.suppress(OSError):  # a folder that was removed, perhaps with another run in its place
        if written := (attempt / "nurse.json").stat().st_mtime_ns == name.st_mtime_ns:
            write_ending(attempt, {"code": code, **times, **ranks, **facts})
    os.close(lock)  # who reads the ending may start the next attempt at once, while this interpreter still leaves
    return 0 if written or not foreign else code if code >= 0 else 128 - code


def reserve(attempt: Path) -> None:
    """Take the room that ending.json will need, so that a disk that fills up meanwhile does not hide how the attempt ended."""
    with contextlib.suppress(OSError):
        (attempt / _RESERVED).write_bytes(b" " * _ENDING_BYTES)


def write_ending(attempt: Path, ending: dict[str, Any]) -> None:
    """Write ending.json, on a full disk into the room that was reserved for it."""
    reserved, text = attempt / _RESERVED, json.dumps(ending).encode()
    try:
        write_whole(attempt / "ending.json", ending)
        reserved.unlink(missing_ok=True)
    except OSError:
        try:
            with reserved.open("r+b", buffering=0) as handle:
                handle.write(text.ljust(_ENDING_BYTES))
            reserved.replace(attempt / "ending.json")
        except OSError as error:  # a file system that has become read-only: nobody can be told
            with contextlib.suppress(OSError):
                print(f"holdfast: {text.decode()} cannot be written down: {error.strerror}", file=sys.stderr, flush=True)


def _environment(orders: dict[str, Any]) -> dict[str, str]:
    return {name: value for name, value in (os.environ | orders["env"]).items() if value is not None}


def take_lock(descriptor: int, called_off: Path) -> bool:
    """Take the trainer lock, unless the attempt is called off meanwhile: the file is there.

    Others hold it for an instant when they ask whether it is free, and on a busy machine what the attempt before left takes seconds to end.
    """
    until = time.monotonic() + _LOCK_S
    while not called_off.exists():
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return not called_off.exists()
        except OSError:
            if time.monotonic() > until:
                return False
            time.sleep(0.02)
    return False


class Writer:
    """The checkpoint writer beside trainers: started again when it dies, more slowly each time it dies at once. Its name is in a file.

    One that the system has no process or memory for is one that has died at once.
    """

    def __init__(self, argv: list[str], environment: dict[str, str], output: Any, name: Path) -> None:
        self.argv, self.environment, self.output, self.name = argv, environment, output, name
        self.pause = WRITER_PAUSE_S[0]
        self.process: subprocess.Popen[bytes] | None
        self._start()

    def _start(self) -> None:
        nothing, output = subprocess.DEVNULL, self.output
        self.process, self.began, self.died = None, time.monotonic(), 0.0
        try:
            self.process = subprocess.Popen(self.argv, stdin=nothing, stdout=output, stderr=output, env=self.environment)
        except OSError as error:
            print(f"holdfast: the checkpoint writer could not be started: {error}; it is tried again", file=sys.stderr, flush=True)
            return
        with contextlib.suppress(OSError):  # on a full disk `holdfast status` does not know it
            write_whole(self.name, {"identity": identify(self.process.pid)})

    def started(self, pid: int) -> None: ...

    def look(self, living: list[int]) -> None:
        """Wait for an end, a moment at most, and see that the writer lives."""
        if self.process is not None and self.process.poll() is None:
            wait_for_end((*living, self.process.pid), LOOK_EVERY_S)
            return
        wait_for_end(living, self.pause / 2)
        if not self.died:
            self.died = time.monotonic()
            self.pause = WRITER_PAUSE_S[0] if self.died - self.began > WRITER_PAUSE_S[1] else min(self.pause * 2, WRITER_PAUSE_S[1])
        if time.monotonic() - self.died >= self.pause:
            self._start()

    def end(self, code: int) -> dict[str, Any]:
        """Leave the writer to end by itself, after what it has to write."""
        return {}


if __name__ == "__main__":
    warnings.simplefilter("ignore", ResourceWarning)  # what is held to the end is held on purpose, whatever PYTHONWARNINGS says
    raise SystemExit(main(sys.argv[1:]))
