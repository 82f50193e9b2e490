"""Full fine-tunes cut between ranks: the bits of one rank, whoever dies; checkpoints that any number of ranks goes on from; proof by hash."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from conftest import events, holdfast, make_rows, write_rows
from test_ranks import fault, same, trained

pytestmark = pytest.mark.usefixtures("no_leftovers")

TRAIN = {"steps": 6, "effective_batch": 12, "shards": 4, "micro_batch_tokens": 80, "fsdp": True, "precision": "fp32"}


@pytest.fixture(scope="module")
def alone(assets: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A full fine-tune of one rank whose steps are cut into four parts, evaluated on the way."""
    folder = tmp_path_factory.mktemp("cut")
    tree: dict[str, Any] = {
        "model": str(assets.model),
        "data": {"files": str(write_rows(folder / "rows.jsonl", make_rows(90))), "held_out": 0.1},
        "adapter": {"type": "full"},
        "train": TRAIN | {"lr": 1e-3, "max_tokens": 96, "threads": 1},
        "evaluate": {"every": 3, "generate": 0},
        "run": {"standby": False},
    }

    def write(name: str, **train: Any) -> Path:
        file = folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump(tree | {"train": tree["train"] | train}))
        return file

    return SimpleNamespace(write=write, summary=trained(write("alone")), run=folder / "alone")


def test_two_ranks_give_the_bits_of_one_although_one_of_them_is_killed(alone: SimpleNamespace) -> None:
    config = alone.write("two", ranks=2)
    faults = config.with_suffix(".faults")
    faults.write_text(fault("kill", rank=1, step=4, phase="backward", attempt=1))
    summary = trained(config, "--faults", faults)
    assert summary["attempts"] == 2
    same("two", alone)
    assert sum(incident["lost_steps"] for incident in summary["incidents"]) == 0
