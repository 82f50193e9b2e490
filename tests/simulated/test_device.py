"""A card that goes away between two starts, and one that comes back: nothing else computes in its place, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import events, holdfast, lines
from simulated import card

pytestmark = card.needed

KILLED = [{"name": "killed", "when": {"step": 5, "attempt": 1}, "effect": "kill"}]


def config(config_of: Callable[..., Path], name: str, **sections: Any) -> Path:
    return config_of(name, save={"every": 2}, **sections)


def sha256(run: Path) -> str:
    return str(events(run, "finished")[0]["artifact_sha256"])


def test_a_card_that_comes_back_is_waited_for(config_of: Callable[..., Path], tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert holdfast("train", config(config_of, "whole"), "--run", whole, env=card.environment()).returncode == 0
    away = card.environment(gone_after=1, back_from=3)
    done = holdfast("train", config(config_of, "broken", faults=KILLED), "--run", broken, env=away)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("torch finds no GPU") + done.stdout.count("torch finds no GPU") == 2, "told once, and once in the summary"
    assert [event["event"] for event in lines(broken / "events.jsonl") if event["event"].startswith("device")] == [
        "device_gone",
        "device_back",
    ]
    assert sha256(whole) == sha256(broken)


@pytest.mark.long  # tests/supervision/test_loop.py holds the decision
def test_a_card_that_stays_away_ends_the_run_and_its_return_brings_it_on(config_of: Callable[..., Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    file = config(config_of, "run", faults=KILLED, run={"device_s": 0})
    done = holdfast("train", file, "--run", run, env=card.environment(gone_after=1))
    assert done.returncode == 3 and "torch finds no GPU" in done.stderr
    assert lines(run / "steps.jsonl")[-1]["step"] in (3, 4), "the last row may come with the snapshot"
    assert holdfast("train", file, "--run", run, env=card.environment()).returncode == 0
    assert {row["attempt"] for row in lines(run / "steps.jsonl")} == {1, 3}


def test_a_card_that_only_a_kept_answer_knows_ends_the_run_before_its_first_step(config_of: Callable[..., Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = holdfast("train", config(config_of, "run", run={"device_s": 0}), "--run", run, env=card.environment(gone_after=0))
    assert done.returncode == 3 and "torch finds no GPU" in done.stderr
    assert events(run, "device_gone") and not (run / "steps.jsonl").exists(), "the CPU computes nothing in its place"
    assert lines(run / "timeline.jsonl")[0]["settings"]["device"] == "cuda"


def test_memory_that_comes_back_late_is_waited_for(tmp_path: Path) -> None:
    done = card.run(Path(__file__).parent / "memory_on_card.py", total=1 << 30, ledger=tmp_path / "ledger", release_s=0.5)
    assert done.returncode == 0 and "all of it" in done.stdout, done.stderr[-4000:]
