"""Experts by domain: which domains have one, what a route gains or costs, and what is said where nothing can be told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from holdfast.base.files import write_bytes
from holdfast.data.collect.outfile import row_key
from holdfast.data.files.raw_row import json_line
from holdfast.learn import experts
from holdfast.learn.experts import divide
from holdfast.learn.merged import merge_experts
from holdfast.learn.policy import Policy
from holdfast.learn.rounds import Round
from holdfast.learn.routes import GENERAL, is_as_good, routes_answer, told_in_words
from holdfast.serve.router import NONE


def rows_of(**counts: int) -> list[tuple[str, dict[str, Any]]]:
    return [(name, {"prompt": f"{name} {number}"}) for name, count in counts.items() for number in range(count)]


def test_a_domain_with_too_few_rows_is_left_to_the_adapter_for_all_and_said() -> None:
    learned = [*rows_of(ssh=40, dns=40, git=9), ("", {})]
    names, without = divide(learned, rows_of(ssh=20, dns=12, git=20, new=20), 30, 20)
    assert names == ["ssh"]
    assert without == {"dns": "12 rows at the gate of 20", "git": "9 rows learned of 30", "new": "0 rows learned of 30"}


def test_experts_without_domains_are_refused() -> None:
    tree = {"name": "n", "config": "c", "sources": [{"files": "x"}], "gate": {"rows": "x"}, "experts": {}}
    with pytest.raises(ValueError, match=r"gate\.domains names the field"):
        Policy.model_validate(tree)


@pytest.fixture
def answer_for() -> Callable[..., dict[str, Any]]:
    """What is measured of 40 prompts of each of two domains, ten of a domain without an expert, ten general ones; 5 tokens a row.

    A row loses 1 nat a token under the adapter for all; under its own expert `gain` less, under the other `harm` more.
    """

    def make(choose: Callable[[int, int], int], gain: float = 0.2, harm: float = 0.5, merged: float | None = None) -> dict[str, Any]:
        names = ["ssh"] * 40 + ["dns"] * 40 + ["rare"] * 10 + [GENERAL] * 10
        truth = np.array([0] * 40 + [1] * 40 + [NONE] * 20)
        noise = np.random.default_rng(0).normal(0, 0.02, (100, 3))
        table = np.ones((100, 3)) + harm
        table[:, 0] = 1
        table[np.arange(80), truth[:80] + 1] = 1 - gain
        chosen = np.array([choose(number, int(own)) for number, own in enumerate(truth)])
        if merged is not None:  # what it loses beside the router
            routed = (table + noise)[np.arange(100), chosen + 1]
            table, noise = np.column_stack([table, routed + merged]), np.column_stack([noise, noise[:, 1] / 10])
        return routes_answer(names, truth, chosen, ["ssh", "dns"], np.full(100, 5.0), 5 * (table + noise), np.arange(100))

    return make


def test_a_router_that_is_right_gains_what_the_oracle_does(answer_for: Callable[..., dict[str, Any]]) -> None:
    found = answer_for(lambda number, own: own)
    assert (found["accuracy"]["right"], found["accuracy"]["rows"]) == (80, 80)
    assert (found["none"]["right"], found["none"]["rows"]) == (20, 20)
    assert found["routed"]["verdict"] == found["oracle"]["verdict"] == "better"
    assert found["routed_beside_oracle"]["loss"]["difference"] == 0
    assert found["wrong_route"]["loss"]["difference"] == pytest.approx(0.7, abs=0.02)
    assert found["wrongly_routed"] is None
    assert "better, -0.17" in told_in_words(found)[1] or "better, -0.18" in told_in_words(found)[1]


def test_wrong_routes_cost_what_they_cost_and_are_counted(answer_for: Callable[..., dict[str, Any]]) -> None:
    found = answer_for(lambda number, own: 1 - own if own != NONE and number % 2 else own)
    assert found["accuracy"]["share"] == 0.5
    low, high = found["accuracy"]["interval"]
    assert low < 0.5 < high
    assert found["by_domain"]["ssh"]["went_to"] == {"ssh": 20, "dns": 20}
    assert found["wrongly_routed"]["rows"] == 40
    assert found["routed"]["verdict"] == "worse" and found["oracle"]["verdict"] == "better"
    assert found["routed_beside_oracle"]["verdict"] == "worse"


def test_everything_sent_to_the_adapter_for_all_is_the_same_as_it(answer_for: Callable[..., dict[str, Any]]) -> None:
    found = answer_for(lambda number, own: NONE)
    assert (found["accuracy"]["right"], found["none"]["right"]) == (0, 20)
    assert found["routed"]["verdict"] == "same"
    assert found["by_domain"]["ssh"]["went_to"] == {"(all)": 40}


@pytest.mark.parametrize(("loses", "shown"), [(-0.1, True), (0.0, True), (0.1, False)])
def test_a_merged_adapter_takes_the_routers_place_where_it_is_shown_to_be_as_good(
    answer_for: Callable[..., dict[str, Any]], loses: float, shown: bool
) -> None:
    plain, found = answer_for(lambda number, own: own), answer_for(lambda number, own: own, merged=loses)
    assert is_as_good(found) is shown
    assert plain["merged"] is None and not is_as_good(plain)
    assert {name: found[name] for name in ("routed", "oracle", "wrong_route")} == {
        name: plain[name] for name in ("routed", "oracle", "wrong_route")
    }
    assert found["merged"]["loss"]["difference"] == pytest.approx(loses, abs=0.01)
    assert any("one adapter merged of the experts, beside the router" in line for line in told_in_words(found))


@pytest.mark.parametrize("rslora", [False, True])
def test_experts_are_merged_into_the_mean_of_what_they_add(tmp_path: Path, rslora: bool) -> None:
    draw, adds = np.random.default_rng(0), []
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 8, "use_rslora": rslora, "bias": "none"}
    for at in range(3):
        (tmp_path / f"{at}").mkdir()
        one = {f"x.lora_{side}.weight": draw.normal(size=size).astype(np.float32) for side, size in (("A", (2, 5)), ("B", (4, 2)))}
        save_file(one, tmp_path / f"{at}" / "adapter_model.safetensors")
        (tmp_path / f"{at}" / "adapter_config.json").write_text(json.dumps(config))
        adds.append(one["x.lora_B.weight"] @ one["x.lora_A.weight"] * 8 / (2**0.5 if rslora else 2))
    assert merge_experts([tmp_path / f"{at}" for at in range(3)], tmp_path / "out") == ""
    told = json.loads((tmp_path / "out/adapter_config.json").read_text())
    made = load_file(tmp_path / "out/adapter_model.safetensors")
    scale = told["lora_alpha"] / (told["r"] ** 0.5 if rslora else told["r"])
    assert told["r"] == 6
    np.testing.assert_allclose(made["x.lora_B.weight"] @ made["x.lora_A.weight"] * scale, np.mean(adds, axis=0), rtol=1e-5, atol=1e-6)
    for other, why in (
        ({"use_dora": True}, "adapters with use_dora are not merged"),
        ({"target_parameters": ["mlp.experts"]}, "adapters with target_parameters are not merged"),  # of all experts, in one factor
        ({"r": 171}, "its rank would be 513, more than the 512 that vLLM takes"),  # a server of the router's experts would end over it
    ):
        (tmp_path / "0/adapter_config.json").write_text(json.dumps(config | other))
        assert merge_experts([tmp_path / f"{at}" for at in range(3)], tmp_path / "no") == why
        assert not (tmp_path / "no").exists()


def test_no_word_of_judgement_without_an_interval_that_excludes_zero(answer_for: Callable[..., dict[str, Any]]) -> None:
    found = answer_for(lambda number, own: own, gain=0.0)
    assert found["oracle"]["verdict"] in ("same", "cannot_tell")
    few = routes_answer(["a"] * 3, np.zeros(3, int), np.zeros(3, int), ["a"], np.ones(3), np.array([[2.0, 1.0]] * 3), np.arange(3))
    assert few["routed"]["verdict"] == "cannot_tell"
    assert few["wrong_route"] is None and few["general"] is None


def test_an_expert_learns_no_answer_that_was_found_bad_since(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"prompt": str(number), "completion": "x", "topic": "ssh"} for number in range(3)]
    first, second = (Round(tmp_path / "rounds" / f"000{number}") for number in (1, 2))
    for one, learned, heard in ((first, rows[:2], []), (second, rows[2:], [{"disliked": row_key(rows[0])}])):
        one.path.mkdir(parents=True)
        one.done("collected", {"time": 0.0})
        one.done("trained", {"start_run": str(first.run) if one is second else None})
        write_bytes(one.rows, b"".join(map(json_line, learned)))
        write_bytes(one.arrived, b"".join(map(json_line, heard)))
    (tmp_path / "gate.jsonl").write_text("")
    tree = {"name": "n", "config": "c", "sources": [{"files": "x"}], "gate": {"rows": str(tmp_path / "gate.jsonl"), "domains": "topic"}}
    wanted = Policy.model_validate(tree | {"experts": {}, "folder": str(tmp_path)})
    current = SimpleNamespace(current=lambda name: SimpleNamespace(facts={"run": str(second.run)}))
    monkeypatch.setattr(experts, "read_registry", lambda file: current)
    monkeypatch.setattr(experts, "_make", lambda policy, run, folder, wanted, learned, say: learned)
    assert experts.make_experts(wanted, print) == [("ssh", rows[2]), ("ssh", rows[1])]  # type: ignore[comparison-overlap]
