"""What lets a round through: numbers in, promoted or refused with the reason out; and gates that no round could pass."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conftest import write_rows
from holdfast.base.errors import Stop
from holdfast.data.collect.outfile import row_key
from holdfast.data.files.raw_row import Source
from holdfast.learn import gate
from holdfast.learn.gate import contradicted, decide, drifted, held_rows, may_carry
from holdfast.learn.policy import Policy
from holdfast.run.folder import RunFolder
from holdfast.verify.compare import price_of

Group = dict[str, Any]


def group(difference: float, half: float, verdict: str = "same", rows: int = 30) -> Group:
    interval = [difference - half, difference + half]
    loss = {"difference": difference, "interval": interval}
    return {"rows": rows, "loss": loss, "verdict": verdict, "why": "as measured", "rows_needed": None}


def found(**groups: Group) -> dict[str, Any]:
    general = groups.pop("general", group(0.0, 0.01))
    return {"groups": {"new": group(-0.5, 0.1, "better")} | groups, "general": general, "expectations": None}


@pytest.mark.parametrize(
    ("measured", "certain", "promoted", "verdict", "says"),
    [
        (found(ssh=group(-0.1, 0.05)), False, True, "better", "new rows are better, loss -0.5000"),
        (found(ssh=group(0.3, 0.1)), False, False, "worse", "ssh +0.3000"),
        (found(ssh=group(0.03, 0.1)), False, False, "cannot_tell", "ssh +0.0300"),  # over the margin, though it may be chance
        (found(ssh=group(0.01, 0.1)), False, True, "better", "within the margin of 0.02"),
        (found(ssh=group(0.01, 0.1)), True, False, "cannot_tell", "not shown to be within the margin"),
        (found(general=group(0.4, 0.1)), False, False, "worse", "general answers +0.4000"),
        (found(new=group(-0.5, 0.6, "cannot_tell")), False, False, "cannot_tell", "new rows are not shown to be better"),
        (found(new=group(0.5, 0.1, "worse")), False, False, "worse", "new rows are not shown to be better"),
        (found() | {"expectations": {"only_base": 2}}, False, False, "worse", "2 prompts that held the rules before"),
        (found() | {"unmeasured": {"dns": 9}}, False, True, "better", "dns was not measured, it has 9 new rows and none at the gate"),
        ({"groups": {}, "general": group(0.0, 0.01)}, False, False, "cannot_tell", "none was held out"),
    ],
)
def test_the_gate_says_yes_to_evidence_alone(measured: Group, certain: bool, promoted: bool, verdict: str, says: str) -> None:
    answer = decide(measured, 0.02, certain)
    assert answer[:2] == (promoted, verdict)
    assert says in answer[2]


def seen(ssh: float, tuned: float, gate: str = "g") -> Group:
    """What was measured of a version: the losses on ssh, before and after."""
    one = group(tuned - ssh, 0.001)
    one["loss"] |= {"base": ssh, "tuned": tuned}
    general = group(0.0, 0.01)
    general["loss"] |= {"base": 5.0, "tuned": 5.0}
    return {"groups": {"new": group(-0.5, 0.1, "better"), "ssh": one}, "general": general, "expectations": None, "gate_sha256": gate}


def test_many_small_losses_are_refused_once_they_add_up() -> None:
    before = [seen(1.04, 1.055), seen(1.02, 1.04), seen(1.0, 1.02)]  # the newest first, each within the margin
    now = seen(1.055, 1.07)
    assert drifted(now, before, 0.1) == {}
    far = drifted(now, before, 0.05)
    assert far == {"ssh": pytest.approx(0.07)}
    promoted, verdict, why = decide(now | {"drifted": far}, 0.02, certain=False)
    assert (promoted, verdict) == (False, "cannot_tell")
    assert "worse than it ever was in place, by more than gate.drift: ssh +0.0700" in why
    assert not may_carry(now | {"drifted": far}, 0.02, certain=False)
    assert drifted(now, [each | {"gate_sha256": "other rows"} for each in before], 0.05) == {}
    assert drifted(now, [], 0.05) == {}, "the first round"


@pytest.mark.parametrize(
    ("new", "old", "named"),
    [
        (-0.4, group(0.010, 0.008, "worse"), True),  # within the margin, as a poison of little effect is
        (-0.4, group(0.300, 0.100, "worse"), True),  # beyond it, too: the reason is named
        (-0.4, group(0.010, 0.020, "cannot_tell"), False),
        (-0.4, group(-0.100, 0.020, "better"), False),  # good rows teach more of the same
        (0.1, group(0.010, 0.008, "worse"), False),  # both lost: forgotten for another domain's sake, which the margin judges
    ],
)
def test_new_rows_that_gain_where_the_gates_lose_contradict_them_and_are_refused_by_name(new: float, old: Group, named: bool) -> None:
    gained = group(new, 0.5, "cannot_tell", rows=6)
    for one, before in ((gained, 5.1), (old, 0.9)):
        one["loss"] |= {"base": before, "tuned": before + one["loss"]["difference"]}
    measured = found(open=old) | {"new_domains": {"open": gained}}
    against = contradicted(measured)
    assert [*against] == ["open"] * named
    promoted, verdict, why = decide(measured | {"contradicted": against}, 0.1, certain=False)
    if named:
        assert (promoted, verdict) == (False, "worse")
        assert "new answers contradict what is known: open, new rows -0.4000 and the gate's +0." in why
        assert "before, the loss was 5.10 on new ones and 0.90 on the gate's (where the new answers are right, correct gate.rows" in why
        assert not may_carry(measured | {"contradicted": against}, 0.5, certain=False)
    else:
        assert "contradict" not in why
        assert promoted


@pytest.mark.parametrize(
    ("measured", "carries"),
    [
        (found(new=group(-0.5, 0.6, "cannot_tell")), True),
        ({"groups": {}, "general": group(0.0, 0.01)}, True),
        (found(new=group(0.005, 0.04, "cannot_tell")), False),  # as wrong answers do, which good rows would carry past the gate
        (found(new=group(0.0, 0.6, "cannot_tell")), False),
        (found(new=group(0.5, 0.1, "worse")), False),
        (found(new=group(0.0, 0.01, "same")), False),  # more of them would tell nothing else
        (found(new=group(-0.5, 0.6, "cannot_tell"), ssh=group(0.03, 0.1)), False),
        (found(new=group(-0.5, 0.6, "cannot_tell"), general=group(0.4, 0.1)), False),
        (found(new=group(-0.5, 0.6, "cannot_tell")) | {"expectations": {"only_base": 1}}, False),
    ],
)
def test_rows_are_tried_again_where_nothing_speaks_against_them_but_their_number(measured: Group, carries: bool) -> None:
    assert may_carry(measured, 0.02, certain=False) is carries


def test_rows_of_few_people_say_that_they_count_as_one_each() -> None:
    new = group(-0.5, 0.6, "cannot_tell", rows=36) | {"by_person": True}
    new["loss"] |= {"clusters": 3}
    _, verdict, why = decide(found(new=new), 0.02, certain=False)
    assert verdict == "cannot_tell"
    assert "on 36 rows, those of one person as one (3 in all): as measured; gate.by_person: false counts each row" in why
    new["loss"] |= {"clusters": 12}
    assert "gate.by_person" not in decide(found(new=new), 0.02, certain=False)[2]


@pytest.mark.parametrize(
    ("others", "keys", "counted"),
    [
        ({77: "ben"}, {}, ["ann", "ann", "", "eve", "eve", "", "joe", "joe"]),
        ({77: ""}, {}, ["ann", "ann", "", "eve", "eve", "", "joe", "joe"]),
        ({}, {}, ["", "", "", "eve", "eve", "", "joe", "joe"]),  # all rows ever are one person's: it is their helper
        ({77: "ben"}, {"by_person": False}, None),
    ],
)
def test_the_gate_draws_rows_of_one_person_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: dict[int, str], keys: dict[str, bool], counted: list[str] | None
) -> None:
    """Two new rows of ann are held out; what the rounds kept besides, and the gate's own rows, say whether she is one of several."""
    asked: list[Any] = []
    of_all = {"(all)": group(0.0, 0.1)}
    of_new = {name: group(-0.5, 0.1, "better") for name in ("new", "new\0(all)")}
    answer = {"groups": of_new | of_all, "forgotten": group(0.0, 0.01), "expectations": None, "hashes": {}}
    monkeypatch.setattr(gate, "verify", lambda request: asked.append(request) or answer)
    monkeypatch.setattr(gate, "read_subject", lambda run: SimpleNamespace(run=None))
    held = [{"prompt": f"Held {at}", "completion": "yes", "who": who} for at, who in enumerate(["", "eve", "eve", None, "joe", "joe"])]
    policy = policy_with(write_rows(tmp_path / "held.jsonl", held), None, **keys)
    new = [{"prompt": f"New {at}", "completion": "yes"} for at in range(2)]
    people = {row_key(row): "ann" for row in new} | others
    told = gate.measure(policy, tmp_path, None, write_rows(tmp_path / "new.jsonl", new), people, tmp_path, lambda _: None)
    [request] = asked
    assert (request.people and [request.people(Source("gate.jsonl", line)) for line in range(1, 9)]) == counted
    assert told["groups"]["new"].get("by_person", False) is (bool(others) and not keys)
    assert [request.groups(Source("gate.jsonl", line)) for line in (2, 3)] == [("new", "new\0(all)"), ("(all)",)]
    assert (list(told["groups"]), list(told["new_domains"])) == (["new", "(all)"], ["(all)"])


def policy_with(rows: Path, domains: str | None, **keys: bool) -> Policy:
    gate_keys = {"rows": str(rows), "domains": domains} | keys
    return Policy.model_validate(
        {"name": "n", "config": "c.yaml", "sources": [{"files": "x"}], "gate": gate_keys, "keep": {"person": "who"}}
    )


@pytest.mark.parametrize(
    ("rows", "domains", "says"),
    [
        ([], None, "has no row"),
        ([{"prompt": "a", "completion": "b"}] * 5, "topic", "5 rows of"),
        ([{"prompt": str(n), "completion": "b", "topic": "ssh" if n else "rare"} for n in range(5)], "topic", "rare has 1"),
    ],
)
def test_a_gate_that_can_never_pass_is_refused_before_anything_is_trained(
    tmp_path: Path, rows: list[Group], domains: str | None, says: str
) -> None:
    with pytest.raises(Stop, match=says) as stop:
        held_rows(policy_with(write_rows(tmp_path / "held.jsonl", rows), domains))
    assert stop.value.code == 2


def test_the_gate_tells_its_price_by_the_pace_of_the_rounds_training(tmp_path: Path) -> None:
    write_rows(tmp_path / "steps.jsonl", [{"step": at, "tokens": 500, "seconds": 1.0} for at in range(1, 5)])
    told = price_of(RunFolder(tmp_path), 90_000)
    assert told == ": 90,000 tokens, about 3 min under both by the pace of its training"
    assert price_of(RunFolder(tmp_path / "none"), 90_000) == "" == price_of(None, 90_000)


def test_a_domain_called_new_is_not_taken_for_the_new_rows(tmp_path: Path) -> None:
    rows = [{"prompt": str(n), "completion": "b", "topic": "new"} for n in range(5)]
    assert {name for name, _ in held_rows(policy_with(write_rows(tmp_path / "held.jsonl", rows), "topic"))} == {"new (domain)"}
