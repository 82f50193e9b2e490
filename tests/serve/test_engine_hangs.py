"""The program that generates hangs or is killed while it answers: who asked is told, and the next request is answered by another one."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import wait_until
from holdfast.serve import engines
from holdfast.serve.engines import Child

_ECHO = """
import sys, time
print('{"ready": true}', flush=True)
for line in sys.stdin:
    time.sleep(0.05)
    print(line, end="", flush=True)
"""


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Child]:
    monkeypatch.setattr(engines, "_LOOK_S", 0.02)
    monkeypatch.setattr(engines, "_SILENT_S", 5.0)
    child = Child([sys.executable, "-c", _ECHO], tmp_path / "log", os.environ)
    yield child
    child.close()


def ask(child: Child) -> bytes:
    with child.asked():
        assert child.process.stdin and child.process.stdout
        child.process.stdin.write(b"hello\n")
        child.process.stdin.flush()
        if not (line := child.process.stdout.readline()):
            raise RuntimeError("nothing came")
        return line


def test_one_that_hangs_is_ended_and_the_next_request_is_answered(child: Child, capfd: pytest.CaptureFixture[str]) -> None:
    assert ask(child) == b"hello\n"
    os.kill(child.process.pid, signal.SIGSTOP)
    first = child.process.pid
    with pytest.raises(RuntimeError, match=r"gave no sign of life for .* s; it was ended, and is started again"):
        ask(child)
    assert "no sign of life" in capfd.readouterr().err
    assert ask(child) == b"hello\n" and child.process.pid != first


def test_one_that_is_killed_in_an_answer_is_told_and_replaced(child: Child) -> None:
    threading.Timer(0.02, child.process.kill).start()
    with pytest.raises(RuntimeError, match="the model's process has ended; it is started again"):
        for _ in range(100):
            ask(child)
    assert ask(child) == b"hello\n"


def test_one_that_has_nothing_to_do_is_not_ended(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "_SILENT_S", 0.1)
    began, first = threading.Event(), child.process.pid
    threading.Timer(0.5, began.set).start()
    wait_until(began.is_set)
    monkeypatch.setattr(engines, "_SILENT_S", 5.0)
    assert ask(child) == b"hello\n" and child.process.pid == first


@pytest.mark.parametrize(
    ("log", "told"),
    [
        ("loading\nholdfast: the adapter lacks a part\n  -> give its base model\n", ("the adapter lacks a part", "give its base model")),
        ("holdfast: the adapter lacks a part\n", ("the adapter lacks a part", "try the other --engine")),
        ("Traceback\n  -> odd\nRuntimeError: no\n", ("RuntimeError: no", "try the other --engine")),
        ("", ("it printed nothing", "try the other --engine")),
    ],
)
def test_an_engine_that_ends_before_it_answers_is_told_by_its_own_sentence(log: str, told: tuple[str, str]) -> None:
    assert engines._why_ended(log) == told
