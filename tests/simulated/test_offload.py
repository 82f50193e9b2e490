"""An optimizer's moments in main memory: the bits of those on the card, through a kill, too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import events, lines
from simulated import card
from simulated.test_run import TRAIN, trained

pytestmark = card.needed


def test_moments_in_main_memory_give_the_bits_of_those_on_the_card() -> None:
    done = card.run(Path(__file__).parent / "on_offload.py")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "all of it" in done.stdout


@pytest.mark.long
@pytest.mark.parametrize("weights", ["fp32", "bf16"])
def test_a_killed_run_with_them_ends_as_one_without(config_of: Callable[..., Path], tmp_path: Path, weights: str) -> None:
    full: dict[str, Any] = {"adapter": {"type": "full"}, "run": {"standby": False}}
    train = TRAIN | {"weights": weights}
    whole = trained(config_of("whole", train=train, **full), tmp_path / "whole")
    faults = [{"effect": "kill", "when": {"step": 4, "attempt": 1, "phase": "optimizer"}}]
    away = trained(config_of("away", train=train | {"offload": "optimizer"}, faults=faults, **full), tmp_path / "away")
    assert away["artifact_sha256"] == whole["artifact_sha256"] and away["attempts"] == 2
    assert [event["ending"] for event in events(tmp_path / "away", "attempt_ended")] == ["killed by SIGKILL"]
    assert [row["step"] for row in lines(tmp_path / "away" / "steps.jsonl")] == list(range(1, 9))
