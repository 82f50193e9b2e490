"""A trainer whose supervisor is gone writes nothing into a new run that was begun under its run's name."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from conftest import holdfast, kill, lines, processes_of, start, wait_until
from holdfast.run.folder import RunFolder
from holdfast.run.outcomes import exit_code
from holdfast.trainer.common import job as jobs

STEPS = 30


class Left(Exception):
    """Stands for the end of the process."""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> jobs.Job:
    def leave(code: int) -> None:
        raise Left(code)

    monkeypatch.setattr(jobs.os, "_exit", leave)
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    run.write_id("first")
    return jobs.Job(run, 1, tmp_path, SimpleNamespace(), SimpleNamespace(), [], [])  # type: ignore[arg-type]


def test_it_goes_on_in_its_own_folder_moved_copied_or_gone_for_a_moment(job: jobs.Job, tmp_path: Path) -> None:
    job.leave_another_run()
    job.run.path.rename(tmp_path / "away")
    job.leave_another_run()
    job.run.path.symlink_to(tmp_path / "away")
    job.leave_another_run()
    job.run.path.unlink()
    job.run.path.mkdir()
    job.run.write_id("first")
    job.leave_another_run()


def test_it_ends_where_another_run_has_its_name(job: jobs.Job, tmp_path: Path) -> None:
    job.run.path.rename(tmp_path / "away")
    job.run.path.mkdir()
    job.leave_another_run()  # nobody's yet
    job.run.write_id("second")
    with pytest.raises(Left, match=str(exit_code("elsewhere"))):
        job.leave_another_run()


def test_what_was_left_of_a_removed_run_leaves_the_one_begun_under_its_name_alone(config_of: Callable[..., Path], tmp_path: Path) -> None:
    run, whole = tmp_path / "run", tmp_path / "whole"
    config = config_of(train={"steps": STEPS}, save={"every": 2}, run={"standby": False})
    slow = [{"when": {"step": step}, "effect": "slow", "seconds": 0.2} for step in range(5, STEPS)]
    (tmp_path / "f.yaml").write_text(json.dumps(slow))
    child = start("train", config, "--run", run, "--faults", tmp_path / "f.yaml")
    wait_until(lambda: (run / "steps.jsonl").exists() and len(lines(run / "steps.jsonl")) == 8)
    left = processes_of(run)
    os.kill(left["trainer"], signal.SIGSTOP)  # and wakes while the new run trains
    kill(child.pid)
    child.communicate()
    shutil.rmtree(run.rename(tmp_path / "away"), ignore_errors=True)  # the writer still writes there
    second = start("train", config, "--run", run, "--json", "--faults", tmp_path / "f.yaml")
    wait_until(lambda: (run / "steps.jsonl").exists() and len(lines(run / "steps.jsonl")) == 4)
    os.kill(left["trainer"], signal.SIGCONT)
    output, _ = second.communicate()
    assert second.returncode == 0, output
    summary = json.loads((run / "summary.json").read_text())
    assert [row["step"] for row in lines(run / "steps.jsonl")] == list(range(1, STEPS + 1))
    assert (summary["status"], summary["steps"], summary["attempts"]) == ("finished", STEPS, 1)
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in left.values()))
    assert not processes_of(run)
    done = holdfast("train", config, "--run", whole, "--json")
    assert summary["artifact_sha256"] == json.loads(done.stdout)["artifact_sha256"]
