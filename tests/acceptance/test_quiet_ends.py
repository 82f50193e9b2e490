"""An exit code says how a process ended, not that its run did: finished is the last step of the timeline, or an early stop on record."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import events, holdfast, lines, settings_with
from holdfast.base.files import write_json
from holdfast.processes.process import adopt, watch
from holdfast.run.folder import RunFolder
from holdfast.run.timeline import Entry, add_entry

Write = Callable[..., Path]


def exits(tmp_path: Path, **when: object) -> Path:
    faults = tmp_path / "faults.yaml"
    faults.write_text(json.dumps([{"name": "a library that leaves", "when": {"phase": "optimizer", **when}, "effect": "exit"}]))
    return faults


def test_a_trainer_that_ends_with_code_0_in_the_middle_is_started_again_and_ends_alike(config_of: Write, tmp_path: Path) -> None:
    run, config = tmp_path / "run", config_of()
    done = holdfast("train", config, "--run", run, "--faults", exits(tmp_path, step=5, attempt=1), "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["status"], summary["steps"], summary["attempts"]) == ("finished", 8, 2)
    assert "exit code 0, before the end" in summary["incidents"][0]["ending"]
    whole = holdfast("train", config, "--run", tmp_path / "whole", "--json")
    assert json.loads(whole.stdout)["artifact_sha256"] == summary["artifact_sha256"]


@pytest.mark.long  # tests/supervision/test_loop.py holds the decision
def test_a_trainer_that_always_ends_with_code_0_is_given_up_and_publishes_nothing(config_of: Write, tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = holdfast("train", config_of(run={"trials": 0}), "--run", run, "--faults", exits(tmp_path, step=5), "--json")
    assert done.returncode == 3, done.stderr
    assert json.loads(done.stdout)["status"] == "gave_up"
    assert not (run / "adapter").exists() and not (run / "artifact").is_symlink()
    assert [row["step"] for row in lines(run / "steps.jsonl")] == [1, 2, 3, 4]
    assert not events(run, "finished")


def attempt_that_ended(run: RunFolder, config: Path, code: int | None, result: dict[str, object] | None = None) -> None:
    """An attempt of a run of three steps, two of them committed, as its shim and trainer leave it."""
    folder = run.attempt(1)
    folder.mkdir(parents=True)
    run.config_file.write_bytes(config.read_bytes())
    add_entry(run.timeline_file, Entry(1, settings_with(steps=3, samples=24).model_dump(), "the plan"))
    rows = [{"step": step, "loss": 1.0, "seconds": 1.0, "attempt": 1, "time": 2.0} for step in (1, 2)]
    run.steps_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_json(folder / "nurse.json", {})
    write_json(folder / "ending.json", {"code": code, "began": 1.0, "ended": 3.0})
    if result is not None:
        write_json(folder / "result.json", result)


@pytest.mark.parametrize(
    ("code", "result", "kind"),
    [
        *((code, None, "error") for code in (0, 1, 64, 65, 67, 68, 69, 130)),  # any library may end a process with these
        (66, None, "disk_full"),  # which takes no account of the trainer either
        (0, {"kind": "finished", "step": 3}, "error"),
        (130, {"kind": "interrupted", "step": 2}, "interrupted"),
        (64, {"kind": "nonfinite", "step": 3, "loss": "nan"}, "nonfinite"),
    ],
)
def test_a_kind_of_end_is_told_by_the_trainers_own_account(
    config_of: Write, tmp_path: Path, code: int, result: dict[str, object] | None, kind: str
) -> None:
    run = RunFolder(tmp_path / "run")
    attempt_that_ended(run, config_of(), code, result)
    attempt = adopt(run)
    assert attempt is not None
    assert watch(attempt, run, lambda _: False).kind == kind


def test_the_last_step_of_the_timeline_is_the_end_with_or_without_an_account(config_of: Write, tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    attempt_that_ended(run, config_of(), 0)
    add_entry(run.timeline_file, Entry(1, settings_with(steps=2, samples=16).model_dump(), "a shorter plan"))
    attempt = adopt(run)
    assert attempt is not None
    assert watch(attempt, run, lambda _: False).kind == "finished"


def test_a_last_step_whose_evaluation_is_missing_is_not_the_end(config_of: Write, tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    attempt_that_ended(run, config_of(evaluate={"every": 2}, data={"held_out": 0.1}), 0)
    add_entry(run.timeline_file, Entry(1, settings_with(steps=2, samples=16).model_dump(), "a shorter plan"))
    attempt = adopt(run)
    assert attempt is not None
    assert watch(attempt, run, lambda _: False).kind == "error"
    run.evaluations_file.write_text(json.dumps({"step": 2, "loss": 1.0, "labels": 3, "seconds": 0.1, "best": True}) + "\n")
    assert watch(attempt, run, lambda _: False).kind == "finished"
