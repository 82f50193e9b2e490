"""Ranks with a simulated card each: the code for cards, its collectives under NCCL's name through gloo."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import lines
from simulated import card
from simulated.test_run import TRAIN, trained

pytestmark = card.needed


def test_two_cards_add_gradients_and_compute_with_layers_that_are_cut() -> None:
    done = card.run(Path(__file__).parent / "ranks_on_card.py", devices=2)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert done.stdout.count("ok") == 2, "one from each, at once perhaps"


@pytest.mark.long
@pytest.mark.parametrize("adapter", [{}, {"type": "full"}])
def test_a_killed_run_of_two_cards_that_share_its_layers_ends_as_one_that_was_not(
    config_of: Callable[..., Path], tmp_path: Path, adapter: dict[str, Any]
) -> None:
    how: dict[str, Any] = {"adapter": adapter, "run": {"standby": False}, "train": TRAIN | {"ranks": 2, "fsdp": True}}
    whole = trained(config_of("whole", **how), tmp_path / "whole", devices=2)
    faults = [{"effect": "kill", "when": {"step": 4, "attempt": 1, "phase": "backward"}}]
    killed = trained(config_of("killed", faults=faults, **how), tmp_path / "killed", devices=2)
    assert killed["artifact_sha256"] == whole["artifact_sha256"] and killed["attempts"] == 2
    assert [row["step"] for row in lines(tmp_path / "killed" / "steps.jsonl")] == list(range(1, 9))
