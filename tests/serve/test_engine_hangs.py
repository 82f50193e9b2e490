"""The program that generates hangs, is stopped or dies, asked or not: it is told, and another one takes its place."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import wait_until
from holdfast.serve import child as children
from holdfast.serve.child import Child

# What is in the file START is done before the first line is printed.
_ECHO = """
import os, pathlib, signal, sys, time
exec(pathlib.Path(os.environ["START"]).read_text())
print('{"ready": true}', flush=True)
for line in sys.stdin:
    time.sleep(0.05)
    print(line, end="", flush=True)
"""


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Child]:
    monkeypatch.setattr(children, "_LOOK_S", 0.02)
    monkeypatch.setattr(children, "_SILENT_S", 5.0)
    (tmp_path / "start").touch()
    child = Child([sys.executable, "-c", _ECHO], tmp_path / "log", {**os.environ, "START": str(tmp_path / "start")})
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
    with pytest.raises(RuntimeError, match="the model's process has ended; it is started again"), child.asked():
        child.process.kill()
        assert child.process.stdout and not child.process.stdout.readline()
        raise RuntimeError("nothing came")
    assert ask(child) == b"hello\n"


def test_one_that_has_nothing_to_do_is_not_ended(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "_SILENT_S", 0.1)
    began, first = threading.Event(), child.process.pid
    threading.Timer(0.5, began.set).start()
    wait_until(began.is_set)
    monkeypatch.setattr(children, "_SILENT_S", 5.0)
    assert ask(child) == b"hello\n" and child.process.pid == first


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_one_that_nobody_asks_is_told_and_replaced(
    child: Child, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], number: int
) -> None:
    monkeypatch.setattr(children, "_SILENT_S", 1.0)
    first = child.process.pid
    assert not child.trouble
    os.kill(first, number)
    wait_until(lambda: child.trouble or child.restarts)
    wait_until(lambda: child.restarts)
    assert not child.trouble and child.process.pid != first and not Path(f"/proc/{first}").exists()
    told = capfd.readouterr().err
    assert (
        "gave no sign of life" if number == signal.SIGSTOP else "was killed by SIGKILL"
    ) in told and "was started again, and answers" in told
    assert ask(child) == b"hello\n"


def test_one_is_replaced_where_nobody_can_be_told(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    """The terminal that serve was started in is gone: what watches over the engine ended with its first word."""

    class Gone:
        def write(self, _: str) -> int:
            raise OSError(9, "Bad file descriptor")

    monkeypatch.setattr(sys, "stderr", Gone())
    child.process.kill()
    wait_until(lambda: child.restarts or not child._watching.is_alive())
    assert ask(child) == b"hello\n" and child.restarts == 1 and child._watching.is_alive()


@pytest.mark.parametrize(
    ("start", "why"),
    [
        ("raise SystemExit('holdfast: no memory is left')", "has ended with exit code 1: no memory is left; it is started again in"),
        ("os.kill(os.getpid(), signal.SIGSTOP)", "hung at its start"),
    ],
)
def test_one_that_cannot_be_started_again_is_told_until_it_can(
    child: Child, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str, why: str
) -> None:
    monkeypatch.setattr(children, "_SILENT_S", 30.0 if "exit code" in why else 0.5)
    (tmp_path / "start").write_text(start)
    child.process.kill()
    wait_until(lambda: why in child.trouble)
    with pytest.raises(RuntimeError, match=why):
        ask(child)
    assert not child.restarts
    monkeypatch.setattr(children, "_SILENT_S", 30.0)
    (tmp_path / "start").write_text("")
    wait_until(lambda: child.restarts)
    assert not child.trouble and ask(child) == b"hello\n"


def test_one_that_works_and_gives_no_part_of_an_answer_is_ended(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "PATIENCE_S", 0.5)
    with pytest.raises(RuntimeError, match=r"gave no part of an answer for .* s; it was ended"), child.asked():
        assert child.process.stdout and not child.process.stdout.readline()
        raise RuntimeError("nothing came")
    wait_until(lambda: child.restarts)


def test_one_that_is_being_started_keeps_no_end_waiting(child: Child, tmp_path: Path) -> None:
    (tmp_path / "start").write_text("while True: time.sleep(0.01)")
    first = child.process.pid
    child.process.kill()
    wait_until(lambda: child.process.pid != first)
    child.close()
    assert child.process.poll() is not None


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
    assert children._why_ended(log) == told
