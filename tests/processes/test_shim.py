"""The shim waits for what the attempt before left, and for nothing where its own attempt was called off."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.locks import hold
from holdfast.base.safe_open import lock_descriptor
from holdfast.machine.kernel_log import marks
from holdfast.machine.place import Place
from holdfast.processes.shim import Writer, take_lock
from holdfast.processes.trainers import Trainers

_HOLDER = """
import fcntl, sys, time
lock = open(sys.argv[1], "r+")
fcntl.flock(lock, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(1.5)
"""


def test_an_attempt_starts_although_the_one_before_is_slow_to_end(tmp_path: Path) -> None:
    lock = tmp_path / "trainer.lock"
    descriptor = lock_descriptor(lock)
    before = subprocess.Popen([sys.executable, "-c", _HOLDER, str(lock)], stdout=subprocess.PIPE)
    assert before.stdout is not None and before.stdout.readline() == b"held\n"
    assert take_lock(descriptor, tmp_path / "ending.json")
    with before:
        pass


def test_a_shim_writes_down_how_many_were_killed_for_memory_by_the_end(tmp_path: Path) -> None:
    attempt = tmp_path / "001"
    attempt.mkdir()
    launch = {"argv": ["true"], "env": {}, "trainer_lock": str(tmp_path / "trainer.lock"), "writer_argv": ["true"]}
    (attempt / "launch.json").write_text(json.dumps(launch))
    assert subprocess.run([sys.executable, "-m", "holdfast.processes.shim", attempt], check=False).returncode == 0
    ending = json.loads((attempt / "ending.json").read_text())
    assert ending["code"] == 0 and ending["oom_kills"] == marks(Place())["oom_kills"]


def test_an_attempt_that_was_called_off_takes_no_lock(tmp_path: Path) -> None:
    lock, ending = tmp_path / "trainer.lock", tmp_path / "ending.json"
    ending.write_text("{}")
    assert not take_lock(lock_descriptor(lock), ending)
    with hold(lock, wait=False) as free:
        assert free


def test_a_writer_that_the_system_has_no_process_for_is_tried_again_and_ends_no_attempt(tmp_path: Path) -> None:
    program = tmp_path / "writer"
    writer = Writer([str(program)], dict(os.environ), subprocess.DEVNULL, tmp_path / "writer.json")
    writer.look([])
    program.write_text("#!/bin/sh\nsleep 60\n")
    program.chmod(0o700)
    until = time.monotonic() + 60
    while writer.process is None and time.monotonic() < until:
        writer.look([])
    assert writer.process is not None and (tmp_path / "writer.json").exists()
    writer.process.kill()
    writer.process.wait()


def test_ranks_that_wait_for_one_that_could_not_be_started_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    began: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def start(*arguments: Any, **more: Any) -> subprocess.Popen[bytes]:
        if began:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        began.append(popen(*arguments, **more))
        return began[0]

    monkeypatch.setattr(subprocess, "Popen", start)
    with pytest.raises(BlockingIOError):
        Trainers(["sleep", "60"], [0, 1], dict(os.environ), ())
    assert began[0].wait(60) == -signal.SIGKILL
