"""The page of a policy's rounds: every round and domain, what was refused and why, and what many small losses add up to."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.commands import learn as command
from holdfast.learn.page import losses_in_place, rounds_page
from holdfast.learn.policy import Policy
from holdfast.learn.rounds import PHASES, Round

Group = dict[str, Any]


def group(base: float, tuned: float, verdict: str = "same") -> Group:
    difference = tuned - base
    loss = {"base": base, "tuned": tuned, "difference": difference, "interval": [difference - 0.01, difference + 0.01]}
    return {"rows": 30, "loss": loss, "verdict": verdict}


def one(number: int, promoted: bool, ssh: Group, why: str = "as measured") -> dict[str, Any]:
    rows = {"in": 9, "kept": 8, "rejected": 1, "replayed": 2}
    answer = {"round": number, "rows": rows, "rejected_by_reason": {"duplicate": 1}, "verdict": "better", "promoted": promoted}
    answer |= {"version": number if promoted else None, "why": why, "general": group(5.0, 5.0)}
    return answer | {"domains": {"new": group(2.0, 1.0, "better"), "ssh": ssh}}


ROUNDS = [
    one(1, True, group(2.0, 1.0, "better")),
    one(2, True, group(1.0, 1.015)),
    one(3, False, group(1.015, 1.9, "worse"), "worse by more than <the margin>"),
    one(4, True, group(1.015, 1.03)),
    {**one(5, False, group(0, 0), "50 of 50 rows are rejected"), "domains": None, "general": None},
]


def test_small_losses_that_each_pass_are_shown_as_what_they_add_up_to() -> None:
    page = rounds_page("helper", ROUNDS, 0.02)
    assert '<td class="n bad">+0.030</td>' in page, "no round lost more than the margin of 0.02"
    assert "worse by more than &lt;the margin&gt;" in page
    assert "Version 4 is the last that was promoted, in round 4 of 5" in page
    assert page.count("<svg") == 2, "of ssh and of general answers; new rows are others in each round"
    assert "50 of 50 rows are rejected" in page


def test_what_was_refused_is_no_part_of_the_course() -> None:
    measured = [each | {"groups": each["domains"]} for each in ROUNDS if each["domains"]]
    assert losses_in_place(measured, "ssh") == [(0, 2.0), (1, 1.0), (2, 1.015), (4, 1.03)]


def test_rounds_that_trained_nothing_have_a_page_too() -> None:
    assert "No round of 1 was promoted" in rounds_page("helper", ROUNDS[-1:], 0.02)


def test_a_round_that_was_over_when_its_command_failed_stands_on_the_page_of_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk failed behind the last phase, before the page."""
    a_round = Round(tmp_path / "rounds" / "0001")
    a_round.path.mkdir(parents=True)
    counts = {"in": 1, "kept": 1, "rejected": 0, "replayed": 0}
    for phase in PHASES:
        a_round.done(phase, {"time": 1.0, "rows": counts, "by_reason": {}, "promoted": False, "verdict": "cannot_tell", "why": "few"})
    tree = {"name": "n", "config": "c.yaml", "sources": [{"files": "x"}], "gate": {"rows": "x"}, "folder": str(tmp_path)}
    monkeypatch.setattr(command, "load_policy", lambda file: Policy.model_validate(tree))
    monkeypatch.setattr(command, "refuse_unusable", lambda policy: None)
    monkeypatch.setattr(command.Learner, "next_round", lambda self: (None, {"rows": 0, "needed": 1, "rejected": 0}))
    assert command.run(Namespace(policy=Path("p.yaml"), rounds=None, follow=False, forget=None, yes=False, json=True))[0] == 0
    assert (tmp_path / "report.html").exists()
