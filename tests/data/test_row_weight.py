"""Rows that count more or less than others: a weight of two is the row twice, in every objective and layout; bad weights are named."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from conftest import holdfast, write_rows
from holdfast.config.config import Config
from holdfast.data.judge.row_weight import Weights, weight_of
from holdfast.data.judge.turns import BadRow
from holdfast.data.token_set.token_set import TokenSet, load_tokens
from support.architectures import tokens_of
from support.pairs import pairs_of
from support.rounding import assert_equal_but_for_rounding, but_for_rounding
from support.stand import Stand, model_folder

WEIGHTS: list[tuple[Any, float | str | None]] = [
    (2, 2.0),
    (0.25, 0.25),
    ("1.5", 1.5),
    (" 3 ", 3.0),
    (None, None),
    ("", None),
    (0, "zero_weight"),
    ("0.0", "zero_weight"),
    (-1, "bad_weight"),
    ("much", "bad_weight"),
    ("nan", "bad_weight"),
    ("inf", "bad_weight"),
    (True, "bad_weight"),
    ([2], "bad_weight"),
    (1e7, "bad_weight"),
    (1e-7, "bad_weight"),
    (10**400, "bad_weight"),
]


@pytest.mark.parametrize(("given", "wanted"), WEIGHTS)
def test_a_weight_is_a_number_above_zero(given: Any, wanted: float | str | None) -> None:
    if not isinstance(wanted, str):
        assert weight_of({"Weight": given}, "weight") == wanted
        return
    with pytest.raises(BadRow) as bad:
        weight_of({"weight": given}, "weight")
    assert bad.value.reason == wanted and "weight" in bad.value.detail


def test_weights_are_summed_up_alike_however_they_are_grouped() -> None:
    whole, parts, second = Weights(), Weights(), Weights()
    whole.take([2.0, None, 0.5, 1.5])
    parts.take([None, 2.0])
    second.take([0.5, 1.5])
    parts.merge(second)
    parts.merge(Weights())
    assert whole.as_json() == parts.as_json() == {"rows": 3, "min": 0.5, "mean": 4 / 3, "max": 2.0}


def counted(tokens: TokenSet, weights: list[float]) -> TokenSet:
    return replace(tokens, weight=np.array(weights, np.float32))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("model"))


def of(model: Path, objective: str, tokens: TokenSet, **settings: Any) -> Stand:
    return Stand(model, tokens=tokens, settings=settings, train={"objective": objective, "lr": 0.02}, adapter={"dropout": 0.1})


LAYOUTS: list[tuple[str, dict[str, Any]]] = [
    ("sft", {}),
    ("sft", {"packing": False}),
    ("sft", {"reduction_parts": 4}),
    ("dpo", {}),
    ("orpo", {"packing": False}),
    ("simpo", {"reduction_parts": 2}),
]


TERMS = 2000  # label tokens of a step (some 50) times the width of the model


def with_one_part(optimizer: Any, factor: float) -> torch.Tensor:
    """The gradient with that of the matrix that has the largest multiplied."""
    gradient = optimizer.gradient.clone()
    max(optimizer.parts(gradient), key=lambda part: float(part.norm())).mul_(factor)
    return gradient


@pytest.mark.parametrize(("objective", "settings"), LAYOUTS)
def test_a_weight_of_two_is_the_row_twice(model: Path, objective: str, settings: dict[str, Any]) -> None:
    tokens = tokens_of() if objective == "sft" else pairs_of()
    weights = [float(1 + number % 3) for number in range(len(tokens))]
    repeated = [number for number, weight in enumerate(weights) for _ in range(int(weight))]
    plain, weighted = of(model, objective, tokens, **settings), of(model, objective, counted(tokens, weights), **settings)
    one, two = plain.compute(3, rows=repeated), weighted.compute(3)
    assert two.loss == but_for_rounding(one.loss, TERMS) and two.labels < one.labels
    assert_equal_but_for_rounding(plain.optimizer.gradient, weighted.optimizer.gradient, TERMS)
    with pytest.raises(AssertionError, match="of the norm apart"):  # one in a thousand too much in one matrix is seen
        assert_equal_but_for_rounding(with_one_part(plain.optimizer, 1.001), weighted.optimizer.gradient, TERMS)
    alike = plain.compute(3)
    assert abs(two.grad_norm / alike.grad_norm - 1) > 1e-3  # the weights did something
    split = weighted.compute(3, budget=30)
    assert split.loss == but_for_rounding(two.loss, TERMS)


@pytest.mark.parametrize("settings", [{}, {"packing": False}, {"reduction_parts": 4}])
@pytest.mark.parametrize("by_row", [False, True])
def test_shares_of_tokens_weigh_their_losses_and_the_mean(model: Path, settings: dict[str, Any], by_row: bool) -> None:
    tokens = tokens_of()
    share = np.random.default_rng(3).choice(np.array([0.25, 0.5, 1], np.float32), len(tokens.ids))
    tokens = counted(tokens, [1, 2, 0.5, 1, 3, 1]) if by_row else tokens
    stand = Stand(model, tokens=replace(tokens, share=share), settings=settings, adapter={"dropout": 0.0})
    plain = Stand(model, tokens=tokens, settings={"packing": False}, adapter={"dropout": 0.0})
    computed = stand.compute(1)
    total, divisor = torch.zeros(()), 0.0
    for number in range(len(tokens)):
        ids, learned = (torch.from_numpy(array.astype(np.int64)) for array in tokens.row(number))
        own = torch.from_numpy(share[tokens.starts[number] : tokens.starts[number + 1]])
        counts = own * float(tokens.weights_of([number])[0]) * learned
        logits = plain.task.losses.model(input_ids=ids[None]).logits[0, :-1]
        total = total + (torch.nn.functional.cross_entropy(logits, ids[1:], reduction="none") * counts[1:]).sum()
        divisor += float(counts[1:].sum())
    wanted = torch.autograd.grad(total / divisor, list(plain.optimizer.parameters.values()))
    assert computed.loss == but_for_rounding(float(total.detach()) / divisor, TERMS)
    found = stand.optimizer.parts(stand.optimizer.gradient)
    for one, other in zip(found, wanted, strict=True):
        assert_equal_but_for_rounding(other.flatten(), one.flatten(), TERMS)
    assert stand.compute(1, budget=30).loss == but_for_rounding(computed.loss, TERMS)


def test_shares_that_are_all_one_change_no_bit(model: Path) -> None:
    tokens = tokens_of()
    found = []
    for share in (None, np.ones(len(tokens.ids), np.float32)):
        stand = of(model, "sft", replace(tokens, share=share))
        found.append(([stand.step(step) for step in (1, 2)], stand.saved()))
    assert found[0] == found[1]


@pytest.mark.parametrize("objective", ["sft", "dpo", "kto"])
def test_weights_that_are_all_one_change_no_bit_and_all_alike_no_loss(model: Path, objective: str) -> None:
    tokens = tokens_of() if objective == "sft" else pairs_of(marked=objective == "kto")
    found = []
    for weight in (None, 1.0, 8.0):
        stand = of(model, objective, tokens if weight is None else counted(tokens, [weight] * len(tokens)))
        found.append(([stand.step(step) for step in (1, 2)], stand.saved()))
    assert found[0] == found[1]
    assert found[2][0] == but_for_rounding(found[0][0], TERMS)


def test_a_run_counts_rows_by_their_field_and_names_bad_ones(config_of: Callable[..., Path], tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"prompt": f"Join {at}", "completion": f"amber-{at}", "stars": [1, 2, 5][at % 3]} for at in range(20)]
    rows += [{"prompt": "q", "completion": "a", "stars": bad} for bad in (0, "many", -2)]
    rows += [{"prompt": "none", "completion": "one"}]
    file = write_rows(tmp_path / "rows.jsonl", rows)
    with file.open("a") as handle:
        handle.write('{"prompt": "q", "completion": "a", "stars": NaN}\n')
    changed = {"data": {"files": [str(file)], "row_weight": "stars", "held_out": 0.2}, "train": {"steps": 2}, "evaluate": {"generate": 0}}
    config = config_of("c", **changed)
    done = holdfast("train", config, "--run", tmp_path / "run", "--json")
    assert done.returncode == 0, done.stderr
    assert "bad_weight 3, zero_weight 1" in done.stderr and "weights: 1 to 5, mean" in done.stderr and "not used" not in done.stderr
    weight = load_tokens(tmp_path / "run/data.safetensors").weight
    assert weight is not None and sorted(weight.tolist()) == sorted([*(float(row["stars"]) for row in rows[:20]), 1.0])
    shown = holdfast("data", "show", file, "--row", "3", "--config", config, "--json")
    assert json.loads(shown.stdout)["weight"] == 5.0
    checked = json.loads(holdfast("data", "check", file, "--row-weight", "stars", "--json").stdout)
    assert checked["weights"] == {"rows": 20, "min": 1.0, "mean": 2.55, "max": 5.0} and checked["by_reason"]["bad_weight"] == 3


def test_a_field_that_no_row_has_is_refused(assets: SimpleNamespace, config_of: Callable[..., Path], tmp_path: Path) -> None:
    done = holdfast("train", config_of("c", data={"row_weight": "wieght"}), "--run", tmp_path / "run")
    assert done.returncode == 1 and "no row has a weight in a field 'wieght'" in done.stderr and "Traceback" not in done.stderr
    checked = holdfast("data", "check", assets.rows, "--row-weight", "wieght", "--tokenizer", "tiny")
    assert checked.returncode == 1 and "'wieght': train refuses it" in checked.stdout
    with pytest.raises(ValueError, match="rows of a table all count alike"):
        Config.model_validate({"task": "tabular", "table": {"target": "y"}, "data": {"files": "x", "row_weight": "w"}})
