"""SIGTERM ends every command as Ctrl-C does: with exit code 130, a word, and nothing half written left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import make_rows, wait_until, write_rows
from holdfast.cli.commands import models
from holdfast.cli.main import main
from holdfast.data.survey import clean as cleaning
from holdfast.data.templates.budget import ending
from holdfast.export import export as exporting
from holdfast.supervision import sigterm
from support.shipped import make_adapter


@pytest.fixture(autouse=True)
def nobody_listens() -> Iterator[None]:
    """And nobody is told of signals, as another test may have left it."""
    before, told = signal.signal(signal.SIGTERM, signal.SIG_DFL), signal.set_wakeup_fd(-1)
    yield
    signal.signal(signal.SIGTERM, before)
    signal.set_wakeup_fd(told)


def end_here(*_: Any, **__: Any) -> Any:
    os.kill(os.getpid(), signal.SIGTERM)
    raise AssertionError("nobody heard it")


def test_it_is_heard_by_a_command_that_does_not_listen_itself(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(models, "run", end_here)
    threads = threading.active_count()
    for words in (["models"], ["models", "--json"]):
        assert main(words) == 130
        assert "holdfast: interrupted" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL and threading.active_count() == threads and signal.set_wakeup_fd(-1) == -1


def test_who_hears_it_already_goes_on_hearing_it() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        with sigterm.as_ctrl_c(130):
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM]


def test_cleaned_rows_that_are_ended_leave_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rows(tmp_path / "rows.jsonl", make_rows(20))
    before = {file.name for file in tmp_path.iterdir()}
    monkeypatch.setattr(cleaning, "_write", end_here)
    monkeypatch.chdir(tmp_path)
    assert main(["data", "clean", "rows.jsonl", "--out", "clean.jsonl"]) == 130
    ending.clear()  # a process has one command
    assert {file.name for file in tmp_path.iterdir()} == before


def test_an_export_that_is_ended_leaves_nothing_and_takes_away_what_a_killed_one_left(
    assets: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = make_adapter(assets.model, tmp_path / "adapter")
    ended = subprocess.Popen(["true"])
    ended.wait()
    left, others = (tmp_path / f".out.{pid}.tmp" for pid in (ended.pid, os.getppid()))
    for folder in (left, others):
        (folder / "deeper").mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(b"many")
    monkeypatch.setattr(exporting, "prove", end_here)
    assert main(["export", str(adapter), "--base", str(assets.model), "--to", "merged", "--out", str(tmp_path / "out")]) == 130
    assert {file.name for file in tmp_path.iterdir()} == {"adapter", others.name}


_STUCK = """
import hashlib, os, signal, sys
from holdfast.supervision import sigterm
sigterm.PATIENCE_S = 0.2
with sigterm.as_ctrl_c(130):
    if sys.argv[1] == "fork" and os.fork() == 0:
        os.kill(os.getpid(), signal.SIGTERM)
        os._exit(7)
    if sys.argv[1] == "fork":
        raise SystemExit(os.waitpid(-1, 0)[1])
    print("stuck", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"a", b"b", 2**31 - 1)  # hours
"""


def computed(pid: int) -> float:
    """Return the seconds of processor that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) / os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif(sys.platform != "linux", reason="what a process has computed is seen in /proc")
def test_a_call_that_does_not_come_back_is_left_and_a_fork_ends_by_itself() -> None:
    with subprocess.Popen([sys.executable, "-c", _STUCK, ""], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stdout.readline() == "stuck\n"
        before = computed(child.pid)
        wait_until(lambda: computed(child.pid) >= before + 0.2)  # it is in the call: nothing else of it computes for so long
        child.send_signal(signal.SIGTERM)
        assert child.communicate()[1].strip() == "holdfast: interrupted" and child.returncode == 130
    done = subprocess.run([sys.executable, "-c", _STUCK, "fork"], capture_output=True, text=True, check=False)
    assert done.returncode == signal.SIGTERM, done.stderr  # how the fork ended


_TWICE = """
import os, signal, sys
from holdfast.supervision import sigterm

def again(frame, event, argument):
    inside = frame.f_code.co_name in ("set", "notify") and event == "line"  # of an Event, its lock is held in notify
    if inside and (frame.f_code.co_name == "notify" or "threading" not in frame.f_code.co_filename):
        sys.settrace(None)
        os.kill(os.getpid(), signal.SIGTERM)
    return again

try:
    with sigterm.as_ctrl_c(130):
        sys.settrace(again)
        os.kill(os.getpid(), signal.SIGTERM)
finally:
    print("ended", sys.gettrace() is None)
"""


def test_a_second_signal_in_the_middle_of_the_first_ones_handler_does_not_hang_the_command() -> None:
    done = subprocess.run([sys.executable, "-c", _TWICE], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "ended True\n" and "KeyboardInterrupt" in done.stderr
