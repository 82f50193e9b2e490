"""Too little memory on a card, wherever it shows: the run goes on with the same steps, or ends once, with its reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from conftest import events, holdfast, lines
from simulated import card

pytestmark = [card.needed, pytest.mark.usefixtures("no_leftovers")]


def test_steps_evaluations_and_the_watch_on_a_card_that_is_too_small(assets: SimpleNamespace) -> None:
    done = card.run(Path(__file__).parent / "on_memory.py", assets.model)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert done.stdout.split() == ["splits", "watches", "no_micro_batch", "evaluates"]


def test_memory_that_runs_out_once_beside_a_micro_batch_costs_an_attempt_and_no_step(
    config_of: Callable[..., Path], tmp_path: Path
) -> None:
    phases = ("evaluate", "optimizer", "snapshot", "commit")
    faults = [
        {"name": phase, "when": {"attempt": at, "step": 2 * at, "phase": phase}, "effect": "oom"} for at, phase in enumerate(phases, 1)
    ]
    more = {"train": {"steps": 9, "deterministic": True}, "run": {"standby": False}, "evaluate": {"every": 2, "generate": 0}}
    more["data"] = {"held_out": 0.1}
    plain = holdfast("train", config_of("plain", **more), "--run", tmp_path / "plain", "--json", env=card.environment())
    full = holdfast("train", config_of("full", faults=faults, **more), "--run", tmp_path / "full", "--json", env=card.environment())
    assert plain.returncode == full.returncode == 0, full.stderr
    ended = events(tmp_path / "full", "attempt_ended")
    assert [event["ending"] for event in ended] == ["ran out of memory"] * len(phases)
    assert json.loads(full.stdout)["artifact_sha256"] == json.loads(plain.stdout)["artifact_sha256"]
    assert [row["step"] for row in lines(tmp_path / "full" / "steps.jsonl")] == list(range(1, 10))


def test_an_update_that_never_fits_ends_the_run_with_its_reason(config_of: Callable[..., Path], tmp_path: Path) -> None:
    fault = {"name": "full", "when": {"step": 3, "phase": "optimizer"}, "effect": "oom"}
    config = config_of(faults=[fault], run={"standby": False, "trials": 0})
    done = holdfast("train", config, "--run", tmp_path / "run", env=card.environment())
    assert done.returncode == 3
    assert "3 attempts in a row ran out of memory at step 3" in done.stderr
    assert "Traceback" not in (tmp_path / "run/attempts/001/output.log").read_text()
    assert [row["step"] for row in lines(tmp_path / "run" / "steps.jsonl")] == [1, 2]


def test_a_model_that_does_not_fit_is_told_in_one_sentence(config_of: Callable[..., Path], tmp_path: Path) -> None:
    config = config_of(run={"standby": False})
    done = holdfast("train", config, "--run", tmp_path / "run", env=card.environment(limit=60_000))
    assert done.returncode == 3, done.stderr
    log = (tmp_path / "run/attempts/001/output.log").read_text()
    assert "the model does not fit into memory: CUDA out of memory" in log and "Traceback" not in log
    (cause,) = {event["diagnosis"]["cause"] for event in events(tmp_path / "run", "attempt_ended")}
    assert cause == "gpu_out_of_memory"
