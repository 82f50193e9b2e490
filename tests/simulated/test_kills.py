"""Real SIGKILLs on a card whose copies to the host are slow: each step one row, no damage, the same bits where promised."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import start, wait_until
from simulated import card

pytestmark = [card.needed, pytest.mark.usefixtures("no_leftovers")]

STEPS = 40


@pytest.fixture
def killed(config_of: Callable[..., Path], tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    def kill(kills: int, seed: int, deterministic: bool) -> list[dict[str, Any]]:
        """What came of an undisturbed run and of killed ones."""
        train = {"steps": STEPS, "effective_batch": 4, "micro_batch_tokens": 80, "deterministic": deterministic}
        more = {"data": {"held_out": 0.1}, "evaluate": {"every": 10}, "run": {"standby": False}}
        config = config_of(train=train, save={"snapshot_dir": str(tmp_path / "place")}, **more)
        prepared = tmp_path / "prepared"
        first = start("train", config, "--run", prepared, env=card.environment())
        wait_until(lambda: (prepared / "config.yaml").exists())
        first.send_signal(15)
        first.communicate()
        done = card.run(Path(__file__).parent / "on_kills.py", prepared, tmp_path, kills, seed)
        assert done.returncode == 0, done.stderr[-4000:]
        told: list[dict[str, Any]] = json.loads(done.stdout)
        return told

    return kill


def check(told: list[dict[str, Any]], kills: int, same_bits: bool) -> None:
    undisturbed, *others = told
    for run in told:
        assert run["code"] == 0, run["log"]
    assert undisturbed["kills"] == 0 and sum(run["kills"] for run in others) == kills
    for run in told:
        assert run["steps"] == list(range(1, STEPS + 1)), "each step is one row"
        assert run["evaluated"] == list(range(10, STEPS + 1, 10))
        assert all(step == updates for step, updates in run["updates"]) and run["checkpoints"]
        assert not run["passed_over"], "no state counts as damaged"
        assert not same_bits or run["sha256"] == undisturbed["sha256"]


@pytest.mark.parametrize(
    ("deterministic", "kills"),
    [(True, 6), *(pytest.param(*case, marks=pytest.mark.long) for case in ((False, 6), (True, 20), (False, 20)))],
)
def test_some_kills(killed: Callable[..., list[dict[str, Any]]], deterministic: bool, kills: int) -> None:
    check(killed(kills, 1 + deterministic, deterministic), kills, same_bits=deterministic)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_three_hundred_kills(killed: Callable[..., list[dict[str, Any]]], seed: int) -> None:
    check(killed(100, 10 + seed, deterministic=seed != 2), 100, same_bits=seed != 2)
