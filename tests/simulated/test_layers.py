"""Frozen layers in main memory on a simulated card: the bits of a run without, two layers of the card, and no copy that waits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import events, holdfast
from simulated import card

pytestmark = card.needed


def cases(*names: str) -> list[dict[str, Any]]:
    done = card.run(Path(__file__).parent / "layers_on_card.py", *names)
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def assert_kept_away(one: dict[str, Any]) -> None:
    assert one["same"] and one["where"] == "cuda:0" and one["races"] == 0, one
    before, away = one["pageable"]
    assert away == before, one


def assert_two_layers_there(one: dict[str, Any], layers: int) -> None:
    """Of the bytes that are kept in main memory those of two layers are on the card, at rest and at the peak."""
    for before, now in (one["resting"], one["peak"]):
        assert before - now >= one["away"] * (layers - 2) / layers - 64 * 512, one  # blocks of the card are 512 bytes


def test_a_step_has_the_bits_of_one_with_all_layers_on_the_card_and_two_of_eight_are_there() -> None:
    (found,) = cases("half of the layers computed again")
    assert_kept_away(found)
    assert_two_layers_there(found, layers=8)


@pytest.mark.long
def test_every_architecture_and_adapter_and_way_to_hold_weights() -> None:
    found = cases()
    assert len(found) == 28
    for one in found:
        assert_kept_away(one)
    assert_two_layers_there(next(one for one in found if one["name"] == "lora fp32"), layers=8)


@pytest.mark.long
@pytest.mark.parametrize("adapter", [{}, {"type": "layers", "layers": 1}], ids=["lora", "own weights"])
def test_a_killed_run_ends_as_one_that_keeps_all_layers_on_the_card(
    config_of: Callable[..., Path], tmp_path: Path, adapter: dict[str, Any]
) -> None:
    found, rest = [], {"data": {"held_out": 0.1}, "evaluate": {"every": 4, "generate": 2}, "adapter": adapter}
    kill = [{"name": "killed", "when": {"step": 5, "attempt": 1}, "effect": "kill"}]
    for name, offload, faults in [("whole", "off", []), ("away", "layers", kill)]:
        config = config_of(name, train={"steps": 8, "deterministic": True, "offload": offload}, faults=faults, **rest)
        done = holdfast("train", config, "--run", tmp_path / name, "--json", env=card.environment())
        assert done.returncode == 0, done.stderr[-4000:]
        found.append(json.loads(done.stdout))
    whole, away = found
    assert away["artifact_sha256"] == whole["artifact_sha256"] and away["attempts"] == 2
    assert away["loss"] == whole["loss"], "evaluation keeps them there, too"
    assert events(tmp_path / "away", "restored")[0]["frozen_bytes_on_host"] > 0
    replayed = holdfast("trial", tmp_path / "away", "--step", "3", env=card.environment())
    assert "the same as in the run" in replayed.stdout + replayed.stderr
