"""Whole runs on a simulated card: the same twice, through a kill with a standby that holds nothing of the card, and as a Radeon."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import events, holdfast, lines
from simulated import card

pytestmark = card.needed

TRAIN = {"steps": 8, "deterministic": True}


def trained(config: Path, run: Path, **options: Any) -> dict[str, Any]:
    """Train on the card to the end; the summary."""
    done = holdfast("train", config, "--run", run, "--json", env=card.environment(**options))
    assert done.returncode == 0, done.stderr[-4000:]
    summary: dict[str, Any] = json.loads(done.stdout)
    assert lines(run / "timeline.jsonl")[0]["settings"]["device"] == "cuda"
    assert not [event for event in lines(run / "events.jsonl") if event["event"] in ("evaluation_failed", "device_memory_missing")]
    return summary


@pytest.mark.matrix
@pytest.mark.parametrize("options", [{}, {"hip": "gfx1100"}], ids=["nvidia", "amd"])
def test_a_standby_holds_nothing_of_the_card_and_the_run_ends_as_if_nothing_was(
    config_of: Callable[..., Path], tmp_path: Path, options: dict[str, Any]
) -> None:
    evaluated = {"data": {"held_out": 0.1}, "evaluate": {"every": 4, "generate": 2}}
    whole = trained(config_of("whole", train=TRAIN, **evaluated), tmp_path / "whole", **options)
    slow = [{"effect": "slow", "seconds": 0.5, "when": {"attempt": 1}}, {"effect": "kill", "when": {"step": 7, "attempt": 1}}]
    config = config_of("killed", train=TRAIN, run={"standby": True}, faults=slow, **evaluated)
    run, ledger = tmp_path / "killed", tmp_path / "ledger"
    killed = trained(config, run, ledger=ledger, **options)
    assert killed["artifact_sha256"] == whole["artifact_sha256"]
    assert events(run, "standby_started")[0]["holds"] == "imports"
    assert events(run, "attempt_started")[1]["stood_by"]
    assert [row["step"] for row in lines(run / "evaluations.jsonl")] == [4, 8]
    assert killed["loss"]["eval_tuned"] is not None and len(json.loads((run / "evaluation.json").read_text())["samples"]) == 2
    reasons = " ".join(json.loads((run / "plan.json").read_text())["reasons"])
    assert "ends with the same bits" in reasons
