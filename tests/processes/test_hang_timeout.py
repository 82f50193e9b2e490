"""What gives no sign of life is ended, as early as the run has shown what it takes; what cannot be ended is said."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conftest import events, holdfast, processes_of, start, wait_until
from holdfast.base.errors import Stop
from holdfast.base.files import append_line, write_json
from holdfast.machine import clock
from holdfast.processes import process
from holdfast.processes.attempt import Attempt
from holdfast.processes.awake import Awake
from holdfast.processes.hang_timeout import HangTimeout, Overdue, TrainerHangTimeout
from holdfast.processes.process import start_shim, watch
from holdfast.processes.tree import below, bytes_read
from holdfast.run.folder import RunFolder
from holdfast.run.snapshots.memory_file import MemoryFile
from holdfast.supervision import finish
from holdfast.supervision.command import attempts
from holdfast.terminal.run_view import Terminal
from support.world import new_run

HANGS = """
import os, signal, sys, time
if "evaluate" in sys.orig_argv and "holdfast.trainer" in sys.orig_argv:  # in place of what evaluates: a few rows, then no more
    for _ in range(4):
        os.write(int(sys.orig_argv[-1]), b".")
        time.sleep(0.2)
    signal.pause()
"""


@pytest.fixture
def run(config_of: Callable[..., Path], tmp_path: Path) -> RunFolder:
    """A run that goes on, whose steps and evaluations took a second each."""
    config = config_of()
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    config.rename(folder.config_file)
    append_line(folder.steps_file, {"step": 4, "attempt": 2, "seconds": 1.0, "time": 100.0})
    return folder


class Clock:
    """Seconds that a test lets pass."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_a_start_may_take_what_a_slow_disk_does_for_its_model_and_longer_while_it_reads(run: RunFolder, tmp_path: Path) -> None:
    config = run.config()
    with (Path(config.model or "") / "model-00002-of-00002.safetensors").open("wb") as weights:
        os.truncate(weights.fileno(), 100_000_000_000)  # a hole: no disk is taken
    clock = Clock()
    try:
        timeout = TrainerHangTimeout(run, 2, 60.0, clock)
        timeout.starts = [4.0]  # the files were in memory then
        for seconds, read, late in [(2000, 0, None), (2081, 0, 2081), (3000, 1 << 30, None), (5000, 1 << 30, None)]:
            clock.seconds = seconds
            found = timeout.overdue(None, read)
            assert (found.seconds if found else None) == late, (seconds, found)
        for seconds in range(6000, 10_400, 1000):
            clock.seconds = seconds
            assert timeout.overdue(None, seconds << 23) is None
        clock.seconds = 10_500
        found = timeout.overdue(None, 10_500 << 23)
        assert found is not None and found.limit_s == pytest.approx(5 * 2080, rel=0.01), "one that reads for ever is no start either"
    finally:
        (Path(config.model or "") / "model-00002-of-00002.safetensors").unlink()
    assert bytes_read([os.getpid()], from_disks=True) >= 0 and bytes_read([2**30], from_disks=True) == 0


def test_a_second_evaluation_may_be_silent_for_as_long_as_the_first_has_shown(run: RunFolder) -> None:
    clock = Clock()
    timeout, pulse = TrainerHangTimeout(run, 2, 60.0, clock), {"phase": "evaluate", "time": 1000.0}

    def silent_for(seconds: float) -> Overdue | None:
        clock.seconds = seconds
        return timeout.overdue(pulse)

    assert silent_for(0.0) is None and silent_for(899.0) is None
    found = silent_for(901.0)
    assert found and (found.section, found.limit_s) == ("evaluate", 900.0)
    append_line(run.evaluations_file, {"step": 4, "loss": 1.0, "seconds": 2.0})
    assert silent_for(59.0) is None
    found = silent_for(61.0)
    assert found and found.limit_s == 60.0, "what 20 times its two seconds are, and hang_s at least"
    append_line(run.evaluations_file, {"step": 8, "loss": 1.0, "seconds": 3000.0})
    found = silent_for(901.0)
    assert found and found.limit_s == 900.0, "a part of it takes no longer than before it was known"


def test_a_start_in_which_the_calendar_was_set_back_says_nothing_of_how_long_one_takes(run: RunFolder) -> None:
    """The time of a file is the calendar's; as a board without a clock of its own has it before the network tells the time."""
    attempt = run.attempt(1)
    attempt.mkdir(parents=True)
    (attempt / "launch.json").write_text(json.dumps({"started": time.time() + 3600}))
    (attempt / "ready.json").write_text("{}")
    append_line(run.steps_file, {"step": 1, "attempt": 1, "seconds": 1.0, "time": time.time() - 3600})
    clock = Clock()
    timeout = TrainerHangTimeout(run, 2, floor_s=60.0, clock=clock)
    clock.seconds = 300.0
    assert timeout.overdue(None) is None, "a start may take a quarter of an hour until one was seen"
    timeout.overdue({"phase": "step"})
    clock.seconds = 600.0
    assert timeout.overdue({"phase": "step"}) is None, "so may a first step"


def test_time_that_everything_slept_is_no_silence(run: RunFolder) -> None:
    clock = Clock()
    awake = Awake(2.0, clock)
    timeout, pulse = TrainerHangTimeout(run, 2, 5.0, awake.now), {"phase": "step", "time": 1000.0}
    assert timeout.overdue(pulse) is None
    for slept in (3600.0, 8.0, 1e9):  # a closed lid, docker pause, a paused virtual machine
        clock.seconds += slept
        assert timeout.overdue(pulse) is None
    pulse["time"] += 1
    assert timeout.overdue(dict(pulse)) is None, "and the trainer beats again"
    found = None
    for _ in range(200):
        clock.seconds += 0.2
        found = found or timeout.overdue(dict(pulse))
    assert found and found.seconds == pytest.approx(found.limit_s, abs=0.5), "a real silence is seen as early as ever"


def test_a_pulse_that_was_written_by_another_clock_is_as_fresh_as_its_coming(run: RunFolder) -> None:
    clock = Clock()
    timeout = TrainerHangTimeout(run, 2, 5.0, clock)
    for told in (1e12, 1000.0, -5.0):  # set forward, set back
        clock.seconds += 4.0
        assert timeout.overdue({"phase": "step", "time": told}) is None
    clock.seconds += 100.0
    assert timeout.overdue({"phase": "step", "time": -5.0}) is not None


def test_a_clock_that_was_set_back_while_a_trainer_started_shortens_no_patience(run: RunFolder) -> None:
    """Its start seemed to have taken minus an hour, and the next one was ended after `hang_s`."""
    clock = Clock()
    timeout = TrainerHangTimeout(run, 2, 60.0, clock)
    timeout.starts, timeout.first_steps = [-3590.0], [-3600.0]
    clock.seconds = 800.0
    assert timeout.overdue(None) is None
    pulse = {"phase": "step", "time": 1.0}
    timeout.number = 3  # whose first step is to come
    assert timeout.overdue(pulse) is None
    clock.seconds = 1600.0
    assert timeout.overdue(pulse) is None


def test_a_wait_for_a_writer_on_a_slow_disk_is_no_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The best state waits up to five minutes for the checkpoint before it; where steps and evaluations are short, a minute was a hang."""
    from holdfast.trainer.state.snapshot import Snapshots

    memory = MemoryFile.create(tmp_path / "memory", tmp_path, 8, 8)
    memory.beat({"attempt": 1, "step": 5, "phase": "evaluate", "time": clock.now() - 100})
    memory.begin(0)
    memory.seal(0, 4, 1, {}, pin=True)
    waiting: Any = SimpleNamespace(memory=memory, _save_without_writer=lambda: None)
    waiting._await_writer = lambda: Snapshots._await_writer(waiting)
    monkeypatch.setattr(time, "sleep", lambda _: memory.unpin(0))  # the writer has it now
    assert Snapshots._turn(waiting, 5)
    pulse = memory.pulse() or {}
    assert pulse["phase"] == "evaluate" and clock.now() - pulse["time"] < 50


@pytest.mark.parametrize(("code", "kind"), [(0, "finished"), (-9, "hang")])
def test_a_command_that_ended_well_is_not_told_as_a_hang_that_nobody_ended(tmp_path: Path, code: int, kind: str) -> None:
    """holdfast was killed between its note that the command hangs and the signal; the next one watched it to a good end."""
    run = new_run(tmp_path / "run")
    run.attempt(1).mkdir(parents=True)
    write_json(run.attempt(1) / "hang.json", {"reason": "no sign of life"})
    write_json(run.attempt(1) / "ending.json", {"code": code, "began": 1.0, "ended": 2.0})
    ending = attempts._ending(Attempt(1, run.attempt(1), None), run, None)
    assert ending is not None and ending.kind == kind


@pytest.mark.parametrize(
    ("hung_at", "row", "kind"),
    [
        (3, {"step": 5, "attempt": 1}, "killed"),
        (3, {"step": 4, "attempt": 1}, "hang"),
        (3, {"step": 5, "attempt": 0}, "hang"),  # of an attempt before, whose steps were to be computed again
        (None, {"step": 2, "attempt": 1}, "killed"),
        (None, None, "hang"),
    ],
)
@pytest.mark.parametrize("ours", [True, False])
def test_what_went_on_is_not_told_as_a_hang_by_a_note_of_before(
    tmp_path: Path, hung_at: int | None, row: dict[str, int] | None, kind: str, ours: bool
) -> None:
    """holdfast was killed between its note and the signal; the trainer woke, and was killed for memory hours later."""
    run = new_run(tmp_path / "run")
    run.attempt(1).mkdir(parents=True)
    if row:
        append_line(run.steps_file if ours else run.progress_file, row)
    write_json(run.attempt(1) / "hang.json", {"reason": "no sign of life", "step": hung_at})
    write_json(run.attempt(1) / "ending.json", {"code": -9, "began": 1.0, "ended": 2.0})
    attempt = Attempt(1, run.attempt(1), None)
    ending = process._ending(attempt, run) if ours else attempts._ending(attempt, run, None)
    assert ending is not None and ending.kind == kind


def test_a_trainer_that_hangs_before_it_has_told_its_name_is_ended(tmp_path: Path) -> None:
    """Python itself waits for a disk that does not answer, or a standby was stopped: it was waited for without end."""
    run = new_run(tmp_path / "run", hang_s=0.2)
    told = {"env": {}, "settings": {}, "trainer_lock": str(run.trainer_lock), "writer_argv": ["true"]}
    for number in (1, 2):
        run.attempt(number).mkdir(parents=True)
        write_json(run.attempt(number) / "launch.json", told | {"argv": ["sleep", "1000"], "started": 1000.0})
    write_json(ready := run.attempt(1) / "ready.json", {})
    os.utime(ready, (1000.01, 1000.01))  # a start that took no time
    shim, looks = start_shim(run.attempt(2)), 0

    def tick(_: Attempt) -> bool:
        nonlocal looks
        looks += 1
        assert looks < 300, "it is still there after a minute"
        return False

    try:
        ending = watch(Attempt(2, run.attempt(2), shim), run, tick)
        assert (ending.kind, ending.facts["section"]) == ("hang", "start")
    finally:
        for pid in below(shim.pid):
            os.kill(pid, signal.SIGKILL)
        shim.wait()


@pytest.mark.long
def test_a_run_that_was_stopped_as_a_whole_goes_on_when_it_is_woken(config_of: Callable[..., Path], tmp_path: Path) -> None:
    """As docker pause, scontrol suspend and a closed lid do."""
    going = start("train", config_of(train={"steps": 60}, run={"hang_s": 3.0, "standby": False}), "--run", tmp_path / "run")
    wait_until(lambda: (tmp_path / "run" / "steps.jsonl").exists())
    everything = [going.pid, *processes_of(tmp_path / "run").values()]
    for number, pause in ((signal.SIGSTOP, 6.0), (signal.SIGCONT, 0.0)):
        for pid in everything:
            os.kill(pid, number)
        time.sleep(pause)
    said, _ = going.communicate()
    assert going.returncode == 0 and "no sign of life" not in said, said
    assert [end.name for end in (tmp_path / "run" / "attempts").iterdir()] == ["001"]


def test_a_child_that_beats_is_given_twenty_times_its_longest_pause() -> None:
    clock = Clock()
    timeout = HangTimeout(60.0, clock=clock)
    clock.seconds = 899.0
    assert timeout.overdue() is None
    timeout.look()
    clock.seconds = 1798.0
    assert timeout.overdue() is None, "nothing has shown yet what it takes"
    clock.seconds = 904.0
    timeout.look()
    clock.seconds = 1003.0
    assert timeout.overdue() is None
    clock.seconds = 1005.0
    found = timeout.overdue()
    assert found and (found.seconds, found.limit_s) == (101.0, 100.0)


def test_an_evaluation_that_hangs_is_ended_and_said(config_of: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(HANGS)
    config = config_of(data={"held_out": 0.1}, train={"steps": 2}, run={"hang_s": 10.0})
    paths = f"{tmp_path / 'site'}:{Path(finish.__file__).parents[2]}"
    done = holdfast("train", config, "--run", tmp_path / "run", "--json", env={"PYTHONPATH": paths})
    assert done.returncode == 0, done.stderr
    [failed] = events(tmp_path / "run", "evaluation_failed")
    assert failed["reason"].startswith("no sign of life for ") and failed["reason"] in done.stderr
    assert json.loads(done.stdout)["loss"]["eval_tuned"] is None


@pytest.mark.parametrize(
    ("ends", "killed", "failed", "found"),
    [
        (["kill -9 $$", "{write}"], [-9], [], True),
        (["kill -9 $$", "kill -6 $$", "{write}"], [-9], [-6], False),
        (["exit 1", "{write}"], [], [1], False),
        (["{write}; kill -11 $$"], [], [], True),
    ],
)
def test_an_evaluation_that_was_killed_begins_once_more(
    ends: list[str], killed: list[int], failed: list[int], found: bool, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = iter(ends)
    write = f"echo '{{}}' > '{run.evaluation_file}'"

    def start(*_: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["sh", "-c", next(left).replace("{write}", write)])

    monkeypatch.setattr(finish, "_start_evaluation", start)
    monkeypatch.setattr(RunFolder, "plan", lambda _: SimpleNamespace(rows=SimpleNamespace(held_out=3)))
    run.evaluation_file.write_text('{"loads": "of an end before"}')
    finish._evaluate(run, run.config(), Terminal(to_stderr=True, quiet=True), lambda: False)
    for kind, codes in (("evaluation_killed", killed), ("evaluation_failed", failed)):
        told = events(run.path, kind) if run.events_file.exists() else []
        assert [one["code"] for one in told] == codes
    assert run.evaluation_file.exists() == found


def test_an_evaluation_may_read_its_model_from_a_slow_disk_as_a_trainer_may(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that took longer than a quarter of an hour for the weights was ended as a hang, and the run had no held-out loss."""
    allowed: list[float] = []

    class Timeout(HangTimeout):
        def __init__(self, *told: float) -> None:
            super().__init__(*told)
            allowed.append(self.first_s)

    weights = Path(run.config().model or "") / "model-00002-of-00002.safetensors"
    monkeypatch.setattr(finish, "HangTimeout", Timeout)
    monkeypatch.setattr(finish, "_start_evaluation", lambda *_: subprocess.Popen(["true"]))
    monkeypatch.setattr(RunFolder, "plan", lambda _: SimpleNamespace(rows=SimpleNamespace(held_out=3)))
    try:
        with weights.open("wb") as handle:
            os.truncate(handle.fileno(), 100_000_000_000)  # a hole: no disk is taken
        finish._evaluate(run, run.config(), Terminal(to_stderr=True, quiet=True), lambda: False)
    finally:
        weights.unlink()
    assert allowed == [pytest.approx(900 + 2000, rel=0.01)]


def test_an_evaluation_that_cannot_be_ended_ends_the_command(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    class Unkillable:
        pid = 4711

        def kill(self) -> None: ...

        def wait(self, timeout: float | None = None) -> int:
            assert timeout is not None, "this waits without an end"
            raise subprocess.TimeoutExpired("evaluate", timeout)

    said: list[tuple[Any, ...]] = []
    monkeypatch.setattr(finish, "write_summary", lambda *told: said.append(told) or {})
    child: Any = Unkillable()
    with pytest.raises(Stop) as stop:
        finish._end(run, child)
    assert stop.value.code == 3
    assert stop.value.message == "the evaluation (process 4711) is stuck in the kernel: it is still there 30 s after SIGKILL"
    assert said == [(run, "gave_up", stop.value.message)]
