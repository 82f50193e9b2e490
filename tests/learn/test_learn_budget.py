"""What rounds may cost: what is removed first, what never, and when no round begins."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from holdfast.base.errors import Stop
from holdfast.export.registry import promote, record_verdict
from holdfast.learn.budget import bytes_in, make_room, refuse_no_room, seconds_of, time_is_up
from holdfast.learn.policy import Policy
from holdfast.learn.rounds import Round, rounds_of


def policy(folder: Path, retain: int = 3, **budget: float) -> Policy:
    tree = {"name": "n", "config": "c.yaml", "sources": [{"files": "x"}], "gate": {"rows": "x"}, "folder": str(folder)}
    return Policy.model_validate(tree | {"budget": budget, "retain": retain})


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The list of models of these tests."""
    monkeypatch.setenv("HOLDFAST_MODELS", str(tmp_path / "models.jsonl"))
    return tmp_path / "models.jsonl"


@pytest.fixture
def rounds(tmp_path: Path) -> list[Round]:
    """Promoted, refused, refused, promoted: each with an adapter of 1 kB and a checkpoint of 10 kB, trained for half an hour."""
    for number, promoted in enumerate((True, False, False, True), 1):
        one = Round(tmp_path / "rounds" / f"{number:04}")
        (one.path / "run" / "adapter").mkdir(parents=True)
        (one.path / "run" / "checkpoints").mkdir()
        (one.path / "run" / "adapter" / "weights").write_bytes(b"x" * 1000)
        (one.path / "run" / "checkpoints" / "state").write_bytes(b"x" * 10_000)
        (one.path / "run" / "steps.jsonl").write_text(json.dumps({"step": 1, "seconds": 1800.0}) + "\n")
        one.done("collected", {"time": time.time() - (4 - number) * 3 * 86400})
        one.done("decided", {"promoted": promoted})
        one.done("acknowledged", {})
    return rounds_of(tmp_path)


def left(rounds: list[Round]) -> list[str]:
    """Of each round: a for its adapter, c for its checkpoint."""
    return ["".join(kind[0] for kind in ("adapter", "checkpoints") if (each.run / kind).exists()) for each in rounds]


@pytest.mark.parametrize(
    ("retain", "kilobytes", "stays"),
    [
        (3, 0, ["ac", "ac", "ac", "ac"]),
        (1, 0, ["ac", "", "ac", "ac"]),
        (3, 40, ["ac", "", "ac", "ac"]),
        (3, 30, ["ac", "", "", "ac"]),
        (3, 20, ["a", "", "", "ac"]),
        (3, 4, ["a", "", "", "a"]),
    ],
)
def test_what_nothing_needs_goes_first_and_promoted_adapters_stay(
    tmp_path: Path, rounds: list[Round], retain: int, kilobytes: int, stays: list[str]
) -> None:
    wanted = policy(tmp_path, retain, **({"disk_gb": kilobytes / 10**6} if kilobytes else {}))
    make_room(wanted, rounds)
    assert left(rounds) == stays
    refuse_no_room(wanted, rounds)


def test_no_round_begins_where_what_has_to_stay_is_more_than_the_budget(tmp_path: Path, rounds: list[Round]) -> None:
    wanted = policy(tmp_path, disk_gb=1e-6)
    make_room(wanted, rounds)
    assert left(rounds) == ["a", "", "", "a"]
    assert bytes_in(tmp_path) > 2000
    with pytest.raises(Stop, match=r"holds 0\.00 GB, budget\.disk_gb allows 1e-06"):
        refuse_no_room(wanted, rounds)


def test_a_budget_that_became_smaller_is_kept_before_a_round_is_refused(tmp_path: Path, rounds: list[Round]) -> None:
    """It said that nothing is left to remove, and had looked at nothing since the last round; experts are made after that, too."""
    refuse_no_room(policy(tmp_path, disk_gb=20 / 10**6), rounds)
    assert left(rounds) == ["a", "", "", "ac"]


def test_a_weeks_hours_are_those_of_the_last_seven_days(tmp_path: Path, rounds: list[Round]) -> None:
    assert time_is_up(policy(tmp_path), rounds) == ""
    assert time_is_up(policy(tmp_path, hours_a_week=2), rounds) == "", "the first was nine days ago"
    assert "1.50 hours were trained" in time_is_up(policy(tmp_path, hours_a_week=1.5), rounds)
    rounds[0].done("collected", {"time": time.time() + 10**6})
    assert "2.00 hours" in time_is_up(policy(tmp_path, hours_a_week=2), rounds), "the clock was set back"


def test_a_round_counts_when_it_trained_and_not_when_it_was_collected(tmp_path: Path, rounds: list[Round]) -> None:
    """One that waited a week for its training, or for a machine, had spent none of the hours it spent yesterday."""
    assert "1.50 hours" in time_is_up(policy(tmp_path, hours_a_week=1.5), rounds)
    (rounds[0].run / "steps.jsonl").write_text(json.dumps({"step": 1, "seconds": 1800.0, "time": time.time() - 3600}) + "\n")
    assert "2.00 hours" in time_is_up(policy(tmp_path, hours_a_week=1.5), rounds)
    (rounds[0].run / "steps.jsonl").write_text(json.dumps({"step": 1, "seconds": 1800.0, "time": time.time() - 8 * 86400}) + "\n")
    rounds[0].done("trained", {"seconds": 1800.0, "time": time.time() - 86400})
    assert "2.00 hours" in time_is_up(policy(tmp_path, hours_a_week=1.5), rounds), "of one whose run was removed, too"


def test_a_refused_round_that_somebody_put_in_place_keeps_its_adapter(tmp_path: Path, rounds: list[Round], models: Path) -> None:
    for one in rounds[1:]:
        hashes = {"run": str(one.run), "base": "b", "adapter_sha256": str(one.number) * 64, "behaviour_sha256": str(one.number) * 64}
        number = record_verdict(models, "n", hashes, None, "cannot_tell")
        if one.number != 3:
            promote(models, "n", number, "by hand")
    make_room(policy(tmp_path, 0), rounds)
    assert left(rounds) == ["ac", "ac", "", "ac"], "the second is what a rollback brings back"
    make_room(policy(tmp_path, 0, disk_gb=1e-9), rounds)
    assert left(rounds) == ["a", "a", "", "a"]


def test_hours_were_trained_whether_their_run_was_removed_or_not(tmp_path: Path, rounds: list[Round]) -> None:
    for one in rounds:
        one.done("trained", {"seconds": seconds_of(one)})
    (rounds[-1].experts / "ssh" / "run").mkdir(parents=True)
    (rounds[-1].experts / "ssh" / "run" / "steps.jsonl").write_text(json.dumps({"step": 1, "seconds": 360.0}) + "\n")
    before = time_is_up(policy(tmp_path, hours_a_week=0.1), rounds)
    assert "1.60 hours were trained" in before
    make_room(policy(tmp_path, 0), rounds)
    assert left(rounds) == ["ac", "", "", "ac"] and time_is_up(policy(tmp_path, hours_a_week=0.1), rounds) == before
