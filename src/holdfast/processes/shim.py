"""The trainer's parent: starts one attempt, keeps its exit code, keeps the writer alive. Standard library only; decides nothing.

    python -m holdfast.processes.shim ATTEMPT_FOLDER
    python -m holdfast.processes.shim --standby ORDERS     waits, with a trainer that is ready, for an attempt's folder on standard input

It outlives the supervisor. The run's trainer lock is taken here and inherited by the trainer, so the kernel holds it exactly as
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
from pathlib import Path
from typing import Any

from holdfast.base.identity import identify, myself
from holdfast.base.safe_open import lock_descriptor, open_log
from holdfast.base.wait import wait_for_end
from holdfast.processes.trainers import Trainers

LOOK_EVERY_S = 0.5
WRITER_PAUSE_S = (0.1, 5.0)
_RESERVED, _ENDING_BYTES = ".ending.reserved", 512


def main(argv: list[str]) -> int:
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    if argv[0] != "--standby":
        return _attend(Path(argv[0]), None, None)
    orders = json.loads(Path(argv[1]).read_text())
    lock = _open_lock(orders)
    trainers = Trainers(orders["argv"], orders.get("devices", [0]), _environment(orders), (lock,), stdin=subprocess.PIPE)
    names = Path(argv[1]).with_name("standby_pids.json")
    with contextlib.suppress(OSError):
        write_whole(names, {"standby nurse": myself(), "standby": identify(trainers.processes[0].pid)})
    attempt = sys.stdin.readline().strip()
    names.unlink(missing_ok=True)
    code = _attend(Path(attempt), lock, trainers) if attempt else 0
    trainers.kill()
    return code


def _attend(attempt: Path, lock: int | None, standby: Trainers | None) -> int:
    """See an attempt through to its end, with the trainers that stood by where there are some."""
    launch = json.loads((attempt / "launch.json").read_text())
    lock = _open_lock(launch) if lock is None else lock
    if not take_lock(lock) or (attempt / "ending.json").exists():
        return 1  # another trainer lives, or a new supervisor has called this attempt off
    write_whole(attempt / "nurse.json", dict(myself()))
    reserve(attempt)
    environment = _environment(launch)
    began = time.time()
    with open_log(attempt / "output.log") as output:
        if standby and standby.tell(f"{int(attempt.name)}\n"):
            trainers = standby
        else:
            devices, streams = launch.get("devices", [0]), {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
            trainers = Trainers(launch["argv"], devices, environment, (lock,), **streams)
        signal.signal(signal.SIGTERM, lambda *_: trainers.send_signal(signal.SIGTERM))
        code = _watch(trainers, launch["writer_argv"], environment, output, attempt / "writer.json")
    ranks = {} if len(trainers.processes) == 1 else {"rank": trainers.guilty, "codes": [one for _, one in sorted(trainers.codes.items())]}
    write_ending(attempt, {"code": code, "began": began, "ended": time.time(), **ranks})
    return 0


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
        with reserved.open("r+b", buffering=0) as handle:
            handle.write(text.ljust(_ENDING_BYTES))
        reserved.replace(attempt / "ending.json")


def _environment(orders: dict[str, Any]) -> dict[str, str]:
    return {name: value for name, value in (os.environ | orders["env"]).items() if value is not None}


def _open_lock(orders: dict[str, Any]) -> int:
    return lock_descriptor(orders["trainer_lock"])


def take_lock(descriptor: int) -> bool:
    """Take the trainer lock; for a second, because others hold it for an instant when they ask whether it is free."""
    for _ in range(50):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            time.sleep(0.02)
    return False


def _watch(trainers: Trainers, writer_argv: list[str], environment: dict[str, str], output: Any, name: Path) -> int:
    """Wait for the trainers; start the writer, and start it again when it dies, more slowly each time it dies at once.

    Who the writer is stands in the file `name`.
    """
    pause, writer_died = WRITER_PAUSE_S[0], 0.0
    writer = _start(writer_argv, environment, output)
    _name(name, writer)
    started = time.monotonic()
    while (code := trainers.poll()) is None:
        if writer.poll() is None:
            wait_for_end((*trainers.living, writer.pid), LOOK_EVERY_S)
            continue
        wait_for_end(trainers.living, pause / 2)
        if not writer_died:
            writer_died = time.monotonic()
            pause = WRITER_PAUSE_S[0] if writer_died - started > WRITER_PAUSE_S[1] else min(pause * 2, WRITER_PAUSE_S[1])
        if time.monotonic() - writer_died >= pause:
            writer = _start(writer_argv, environment, output)
            _name(name, writer)
            started, writer_died = time.monotonic(), 0.0
    return code


def _name(file: Path, writer: subprocess.Popen[bytes]) -> None:
    """Write down who the writer is, for `holdfast status`; on a full disk that is left out."""
    with contextlib.suppress(OSError):
        write_whole(file, {"identity": identify(writer.pid)})


def _start(argv: list[str], environment: dict[str, str], output: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment)


def write_whole(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON file, whole or not at all."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(value))
    temporary.replace(path)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
