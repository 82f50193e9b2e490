"""Processes beside a trainer that are stopped for ever: each is seen, ended or woken, replaced and told, and the run is whole."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import events, lines, processes_of, start, wait_until

HANG_S, STEPS = 15, 30  # seconds of silence that end a helper: three times what a step waits for the writer, at most


def child_with(word: str, run: Path) -> int | None:
    """The process of the run whose command line has a word."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if word in command and str(run) in command:
            return int(entry.name)
    return None


def test_writer_shim_tracker_and_upload_that_hang_are_replaced(config_of: Callable[..., Path], tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    run, away = tmp_path / "run", tmp_path / "away"
    away.mkdir()
    # many short steps: the helpers are silent for longer than hang_s, no step comes near it, however busy the machine
    slow = [{"when": {"step": step, "attempt": 1}, "effect": "slow", "seconds": 0.6} for step in range(3, STEPS + 1)]
    (tmp_path / "f.yaml").write_text(json.dumps(slow))
    options = {"hang_s": HANG_S, "standby": False, "track": ["tensorboard"]}
    config = config_of(train={"steps": STEPS}, run=options, save={"every": 1, "to": str(away)})
    child = start("train", config, "--run", run, "--faults", tmp_path / "f.yaml")
    wait_until(lambda: (run / "steps.jsonl").exists() and len(lines(run / "steps.jsonl")) == 2)
    found = processes_of(run)
    helpers = [child_with("holdfast.report.track", run), child_with("holdfast.supervision.remote.upload", run)]
    stopped = [found["writer"], found["nurse"], *helpers]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    output, _ = child.communicate()
    assert child.returncode == 0, output
    hung = {event["role"]: event["done"] for event in events(run, "helper_hung")}
    assert hung == {"writer": "ended", "shim": "woken"} and output.count("gave no sign of life") == 3, output  # and the tracker
    assert [event["silent_s"] >= HANG_S for event in events(run, "tracking_failed")] == [True]
    assert json.loads((run / "tracked-tensorboard.json").read_text())["step"] == STEPS
    assert "gave no sign of life" in events(run, "state_not_sent")[0]["reason"]
    assert events(run, "state_sent")[-1]["step"] == STEPS, "another process has sent it"
    assert json.loads((run / "summary.json").read_text())["attempts"] == 1
    assert not processes_of(run) and not any(Path(f"/proc/{pid}").exists() for pid in stopped)


def test_a_writer_that_hangs_at_the_end_is_not_waited_for(config_of: Callable[..., Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    (tmp_path / "f.yaml").write_text(json.dumps([{"when": {"step": 8, "attempt": 1}, "effect": "slow", "seconds": 1}]))
    child = start("train", config_of(run={"hang_s": HANG_S, "standby": False}), "--run", run, "--faults", tmp_path / "f.yaml")
    wait_until(lambda: "writer" in processes_of(run) and (run / "steps.jsonl").exists() and len(lines(run / "steps.jsonl")) >= 6)
    os.kill(processes_of(run)["writer"], signal.SIGSTOP)
    output, _ = child.communicate()
    assert child.returncode == 0, output
    assert [event["role"] for event in events(run, "helper_hung")] == ["writer"]
    assert (run / "checkpoints/step-00000008").is_dir() and not processes_of(run)
