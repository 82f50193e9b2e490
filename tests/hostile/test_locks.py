"""Locks and signals: nobody waits without end or without a word, and only a process that holds a run's lock is sent a signal."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import holdfast
from holdfast.base import locks
from holdfast.base.errors import Stop
from holdfast.base.identity import alive, identify, myself
from holdfast.base.locks import hold, holds
from holdfast.cli.main import main
from holdfast.processes import process
from holdfast.processes.hang_timeout import Overdue
from holdfast.processes.hanging import end_hanging
from holdfast.run.folder import RunFolder
from holdfast.run.holder import signal_holder

NEEDS_PROC = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="which process holds a lock is seen in /proc")
_HOLD = """import fcntl, os, sys, time
descriptor = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.flock(descriptor, fcntl.LOCK_EX)
print("held", flush=True)
"""


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process of this user that has nothing to do with any run."""
    child = subprocess.Popen(["sleep", "600"])
    yield child
    child.kill()
    child.wait()


def holder(lock: Path, then: str = "time.sleep(600)") -> subprocess.Popen[str]:
    child = subprocess.Popen([sys.executable, "-c", _HOLD + then, str(lock)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "held\n"
    return child


@pytest.fixture
def foreign_run(tmp_path: Path, bystander: subprocess.Popen[bytes]) -> Iterator[Path]:
    """A run folder whose locks another process holds, and whose files name a bystander instead."""
    run = tmp_path / "run"
    (run / "attempts" / "001").mkdir(parents=True)
    (run / "config.yaml").write_text("model: tiny\ndata: {files: rows.jsonl}\n")
    (run / "run.json").write_text('{"id": "0123456789abcdef"}')
    children = [holder(run / name) for name in ("supervisor.lock", "trainer.lock")]
    named = {"identity": identify(bystander.pid), "host": "here", "command": "holdfast train run.yaml"}
    (run / "supervisor.lock").write_text(json.dumps(named))
    (run / "attempts" / "001" / "rank0.json").write_text(json.dumps(named))
    yield run
    for child in children:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


@NEEDS_PROC
def test_stop_ends_no_process_that_a_lock_file_merely_names(foreign_run: Path, bystander: subprocess.Popen[bytes]) -> None:
    done = holdfast("stop", foreign_run)
    assert done.returncode == 1 and f"names process {bystander.pid}, but that process does not hold it" in done.stderr, done.stderr
    assert bystander.poll() is None


@NEEDS_PROC
def test_adoption_signals_no_process_that_rank0_merely_names(foreign_run: Path, bystander: subprocess.Popen[bytes]) -> None:
    run = RunFolder(foreign_run)
    attempt = process.Attempt(1, run.attempt(1), shim=None)
    why = end_hanging(attempt, process._trainers(attempt), run.trainer_lock, Overdue("step", 100.0, 5.0))
    assert why is not None and "does not hold trainer.lock" in why
    assert not (attempt.folder / "hang.json").exists(), "it was not ended, and may end of something else"
    process.ask_newest_to_stop(run)
    time.sleep(0.2)
    assert bystander.poll() is None


@NEEDS_PROC
def test_the_kernel_tells_who_holds_a_lock_and_who_inherited_it(tmp_path: Path, bystander: subprocess.Popen[bytes]) -> None:
    lock = tmp_path / "lock"
    with hold(lock, wait=False) as ours:
        assert ours and holds(os.getpid(), lock) and not holds(bystander.pid, lock) and not holds(2**22, lock)
    assert not holds(os.getpid(), lock)
    descriptor = os.open(lock, os.O_RDWR)
    assert not holds(os.getpid(), lock), "an open file is no lock"
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    heir = subprocess.Popen(["sleep", "600"], pass_fds=[descriptor])
    os.close(descriptor)
    assert holds(heir.pid, lock) and not holds(os.getpid(), lock)
    named = identify(heir.pid)
    assert named is not None and signal_holder(named, lock, signal.SIGKILL)
    assert heir.wait() == -signal.SIGKILL
    assert not signal_holder(named, lock, signal.SIGKILL) and not signal_holder(myself(), lock, signal.SIGKILL)


def test_a_wait_for_a_lock_says_who_holds_it_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_TOLD_AFTER_S", 0.05)
    monkeypatch.setattr(locks, "_DEADLINE_S", 0.2)
    lock, said = tmp_path / "writer.lock", list[str]()
    child = holder(lock)
    with pytest.raises(Stop, match=rf"still held after \d+ s, by process {child.pid}"), hold(lock, wait=True, tell=said.append):
        pass
    assert len(said) == 1 and f"held by process {child.pid}" in said[0]
    child.kill()
    child.communicate()
    with hold(lock, wait=True) as ours:
        assert ours


def test_a_lock_that_is_given_back_in_time_is_had(tmp_path: Path) -> None:
    child = holder(tmp_path / "lock", then="time.sleep(0.3)")
    with hold(tmp_path / "lock", wait=True) as ours:
        assert ours
    child.communicate()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
@pytest.mark.parametrize("words", [("stop", "run"), ("attach", "run"), ("models", "promote", "name", "1"), ("move", "run", "--to", "away")])
def test_a_file_system_without_locks_is_named(
    words: tuple[str, ...], number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.yaml").write_text("model: tiny\ndata: {files: rows.jsonl}\n")
    (tmp_path / "run/run.json").write_text('{"id": "0123456789abcdef"}')
    for name in ("supervisor.lock", "trainer.lock"):
        (tmp_path / "run" / name).touch()
    monkeypatch.setenv("HOLDFAST_MODELS", str(tmp_path / "models.jsonl"))
    monkeypatch.chdir(tmp_path)

    def flock(_descriptor: int, _how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    assert main(list(words)) == 1
    told = capsys.readouterr().err
    assert f"the file system of {tmp_path}" in told and "gives no locks" in told and "mount it with locks" in told


@pytest.mark.parametrize("value", [None, 7, "me", [], {}, {"pid": "1"}, {"pid": -1}, {"pid": 10**30}, {"pid": True}, {"pid": 1}])
def test_what_names_no_process_is_not_alive(value: object) -> None:
    assert not alive(value)
