"""What gives no sign of life is ended, as early as the run has shown what it takes; what cannot be ended is said."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import events, holdfast
from holdfast.core.errors import Stop
from holdfast.core.files import append_line
from holdfast.core.run.folder import RunFolder
from holdfast.supervisor import finish
from holdfast.world.patience import Patience, Silence

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


def test_a_second_evaluation_may_be_silent_for_as_long_as_the_first_has_shown(run: RunFolder) -> None:
    patience, pulse = Patience(run, 2, 60.0), {"phase": "evaluate", "time": 1000.0}
    assert patience.overdue(pulse, 1899.0) is None
    found = patience.overdue(pulse, 1901.0)
    assert found and (found.section, found.limit_s) == ("evaluate", 900.0)
    append_line(run.evaluations_file, {"step": 4, "loss": 1.0, "seconds": 2.0})
    assert patience.overdue(pulse, 1059.0) is None
    found = patience.overdue(pulse, 1061.0)
    assert found and found.limit_s == 60.0, "what 20 times its two seconds are, and hang_s at least"
    append_line(run.evaluations_file, {"step": 8, "loss": 1.0, "seconds": 3000.0})
    found = patience.overdue(pulse, 1901.0)
    assert found and found.limit_s == 900.0, "a part of it takes no longer than before it was known"


def test_a_child_that_beats_is_given_twenty_times_its_longest_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    silence = Silence(60.0)
    now = 899.0
    assert silence.too_long() is None
    silence.broken()
    now = 1798.0
    assert silence.too_long() is None, "nothing has shown yet what it takes"
    now = 904.0
    silence.broken()
    now = 1003.0
    assert silence.too_long() is None
    now = 1005.0
    assert silence.too_long() == 101.0


def test_an_evaluation_that_hangs_is_ended_and_said(config_of: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(HANGS)
    config = config_of(data={"held_out": 0.1}, train={"steps": 2}, run={"hang_s": 1.0})
    paths = f"{tmp_path / 'site'}:{Path(finish.__file__).parents[2]}"
    done = holdfast("train", config, "--run", tmp_path / "run", "--json", env={"PYTHONPATH": paths})
    assert done.returncode == 0, done.stderr
    [failed] = events(tmp_path / "run", "evaluation_failed")
    assert failed["reason"].startswith("no sign of life for ") and failed["reason"] in done.stderr
    assert json.loads(done.stdout)["loss"]["eval_tuned"] is None


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
