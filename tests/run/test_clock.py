"""The calendar's clock is set while a run goes on: what its processes write down stays in order, and no duration is wrong."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.base.files import write_json
from holdfast.machine import clock
from holdfast.processes import process
from holdfast.processes.attempt import Attempt
from holdfast.run.command import Command
from holdfast.run.folder import RunFolder
from holdfast.supervision.command.signs import ProgressSigns
from holdfast.supervision.command.states import States
from holdfast.supervision.full_disk import supervised

YEAR_S = 365 * 86400.0


@pytest.fixture
def set_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Set the calendar's clock by so many seconds."""
    right = time.time

    def set_clock(seconds: float) -> None:
        monkeypatch.setattr(time, "time", lambda: right() + seconds)

    monkeypatch.delenv(clock.CLOCK, raising=False)
    return set_clock


@pytest.mark.parametrize("seconds", [10 * YEAR_S, -50 * YEAR_S, -10 * 86400.0, 3.0])
def test_a_clock_that_is_set_moves_no_run(set_by: Callable[[float], None], seconds: float) -> None:
    with clock.counting():
        before = clock.now()
        set_by(seconds)
        assert 0.0 <= clock.now() - before < YEAR_S, "goes on from where it was"
        file = time.time()  # as a file's time would be
        assert clock.in_calendar(before) <= file + 0.5 and abs(clock.in_calendar(before) - (before + seconds)) < 0.5
    assert clock.now() == pytest.approx(time.time(), abs=60), "afterwards the calendar's counts"


def test_the_clock_of_another_boot_is_not_taken_over(set_by: Callable[[float], None]) -> None:
    for told in ("another-boot 1.0", "no clock", "", None, 7, f"{'x' * 99} nan"):
        with clock.counting(told):
            assert abs(clock.now() - time.time()) < 60 and clock.in_calendar(5.0, told) == 5.0


def run_of(tmp_path: Path) -> RunFolder:
    run = RunFolder(tmp_path / "run")
    run.attempt(1).mkdir(parents=True)
    run.write_id("one")
    return run


@pytest.mark.parametrize("ended", [False, True])
def test_who_adopts_a_living_attempt_goes_on_by_its_clock(set_by: Callable[[float], None], tmp_path: Path, ended: bool) -> None:
    run = run_of(tmp_path)
    with clock.counting():
        write_json(run.attempt(1) / "launch.json", {"clock": os.environ[clock.CLOCK], "started": clock.now()})
        began = clock.now()
    if ended:
        write_json(run.attempt(1) / "ending.json", {"code": 0})
    set_by(10 * YEAR_S)
    with supervised(run, print, None, None) as folder:  # type: ignore[arg-type]
        told = folder.event("adopted")["time"]
    assert (told - began > 9 * YEAR_S) == ended, "one that ended is another session's"
    assert json.loads(run.events_file.read_text())["time"] == told


def test_an_end_that_lies_ahead_of_the_clock_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was written down on another boot, whose calendar was hours ahead: the next command waited for them to pass."""
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("it waits"))
    attempt = Attempt(1, run_of(tmp_path).attempt(1), None)
    assert process._of_another_rank(attempt, {"code": 72, "ended": clock.now() + 3600}, None) is None


def test_a_training_that_is_complete_is_known_though_the_calendar_was_put_back(set_by: Callable[[float], None], tmp_path: Path) -> None:
    """Its last checkpoint seemed to be of before the first start, so it was trained again."""
    run, out = run_of(tmp_path), tmp_path / "out/step-6"
    out.mkdir(parents=True)
    (out / "weights.npz").write_bytes(b"weights")
    with clock.counting():
        write_json(run.attempt(1) / "launch.json", {"started": clock.now(), "clock": os.environ[clock.CLOCK]})
        set_by(-3600)
        os.utime(out, (time.time() + 5, time.time() + 5))
        states = States(run, Command(("true",), str(tmp_path), checkpoints="out"), None, lambda _: None)
        found = states.complete(ProgressSigns(6, 6, "output", True, True, True))
        assert found and found.step == 6
        os.utime(out, (time.time() - 60, time.time() - 60))
        assert states.complete(ProgressSigns(6, 6, "output", True, True, True)) is None, "from before it"
