"""The shim waits for what the attempt before left, and for nothing where its own attempt was called off."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from holdfast.base.locks import hold
from holdfast.base.safe_open import lock_descriptor
from holdfast.machine.kernel_log import oom_kills
from holdfast.machine.place import Place
from holdfast.processes.shim import take_lock

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
    assert ending["code"] == 0 and ending["oom_kills"] == oom_kills(Place())


def test_an_attempt_that_was_called_off_takes_no_lock(tmp_path: Path) -> None:
    lock, ending = tmp_path / "trainer.lock", tmp_path / "ending.json"
    ending.write_text("{}")
    assert not take_lock(lock_descriptor(lock), ending)
    with hold(lock, wait=False) as free:
        assert free
