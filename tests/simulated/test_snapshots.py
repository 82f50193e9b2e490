"""Snapshots of a card's state whose copy to the host takes longer than a step: what they hold is the step's, and they cost no memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from conftest import events, holdfast, lines
from simulated import card

pytestmark = [card.needed, pytest.mark.usefixtures("no_leftovers")]

STEPS = 6
SLOW = 100_000  # bytes a second: the copy of a step (60 KB) takes longer than the step after it
KILL = {"name": "kill", "when": {"step": 4, "attempt": 1, "phase": "backward"}, "effect": "kill"}


def train(config: Path, **options: Any) -> dict[str, Any]:
    run = config.with_suffix("")
    done = holdfast("train", config, "--run", run, "--json", env=card.environment(**options))
    assert done.returncode == 0, done.stderr[-4000:]
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


@pytest.fixture
def config(config_of: Callable[..., Path]) -> Callable[..., Path]:
    def write(name: str, **more: Any) -> Path:
        train = {"steps": STEPS, "deterministic": True} | more.pop("train", {})
        return config_of(name, train=train, run={"standby": False}, save={"every": 1, "keep": STEPS} | more.pop("save", {}), **more)

    return write


def test_slow_copies_hold_the_state_of_their_step_and_a_kill_costs_no_earlier_one(config: Callable[..., Path], tmp_path: Path) -> None:
    fast = train(config("fast"))
    slow = train(config("slow", faults=[KILL]), bytes_per_s=SLOW)
    assert [event["ending"] for event in events(tmp_path / "slow", "attempt_ended")] == ["killed by SIGKILL"]
    assert not list((tmp_path / "slow").glob("rollback*"))
    assert slow["artifact_sha256"] == fast["artifact_sha256"]
    for run in ("fast", "slow"):
        assert [row["step"] for row in lines(tmp_path / run / "steps.jsonl")] == list(range(1, STEPS + 1))
        for folder in sorted((tmp_path / run / "checkpoints").glob("step-*")):
            assert load_file(folder / "state.safetensors")["step"].item() == int(folder.name.removeprefix("step-"))


@pytest.mark.long  # it failed once beside other work, not again at a load of 30 on two cores; why is not known
def test_slow_copies_take_no_more_of_the_card_than_fast_ones(config: Callable[..., Path], tmp_path: Path) -> None:
    """The second card has not a byte more than the first run took."""
    fast = train(config("fast"))
    slow = train(config("slow"), bytes_per_s=SLOW, limit=fast["peak_bytes"])
    changed = [[event["what"] for event in events(tmp_path / name, "setting_changed")] for name in ("fast", "slow")]
    assert changed[0] == changed[1], "no micro-batch was made smaller"
    assert slow["artifact_sha256"] == fast["artifact_sha256"]
    assert slow["peak_bytes"] == fast["peak_bytes"]


def test_a_snapshot_that_is_still_being_sealed_holds_up_no_step_and_no_row_is_lost_or_doubled(
    config: Callable[..., Path], tmp_path: Path
) -> None:
    """The second step's snapshot takes a minute to count. The steps after it go on, their rows wait for its row; then all is killed."""
    fast = train(config("fast", save={"every": 100}))
    slow = {"name": "slow", "when": {"step": 2, "attempt": 1, "phase": "commit"}, "effect": "slow", "seconds": 60}
    held = train(config("held", save={"every": 100}, faults=[slow, KILL]))
    assert held["artifact_sha256"] == fast["artifact_sha256"]
    rows = lines(tmp_path / "held" / "steps.jsonl")
    assert [(row["step"], row["attempt"]) for row in rows] == [(1, 1), (2, 1), (3, 2), (4, 2), (5, 2), (6, 2)]


PINNED = """
import mmap, sys
import simulated_card as card
import torch
from holdfast.trainer.common.pinned import PinnedMapping

memory, device = mmap.mmap(-1, 1 << 16), torch.device("cuda:0")
block = torch.frombuffer(memory, dtype=torch.float32)
ones = torch.ones(len(block), device=device)


def slow_copies():
    before = card.pageable()
    block.copy_(ones)
    return card.pageable() - before


assert slow_copies() == 1
pinned = PinnedMapping(memory, device)
assert pinned.refused is None and slow_copies() == 0 and float(block.sum()) == len(block)
pinned.release()
pinned.release()
assert slow_copies() == 1


class Refusing:
    def cudaHostRegister(self, *_): return 801
    def cudaHostUnregister(self, *_): raise AssertionError("it was never taken")


torch.cuda.cudart = Refusing
pinned = PinnedMapping(memory, device)
pinned.release()
assert pinned.refused == "the driver answers 801" and slow_copies() == 1
"""


def test_slots_are_pinned_where_the_driver_takes_them_and_serve_where_it_does_not(tmp_path: Path) -> None:
    script = tmp_path / "pinned.py"
    script.write_text(PINNED)
    done = card.run(script)
    assert done.returncode == 0, done.stderr
