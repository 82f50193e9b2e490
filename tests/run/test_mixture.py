"""Epochs of a part of the rows, and of sources with weights: the same mix in each, no row twice before its time, any epoch at once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import holdfast, lines, make_rows, write_rows
from holdfast.base.errors import Stop
from holdfast.config.config import Config
from holdfast.config.load import load_config
from holdfast.run.sampling.mixture import Mixture, make_mixture
from holdfast.run.sampling.step_table import StepTable, run_length

Write = Callable[..., Path]


def mixture_of(
    sources: list[int], size: int, weights: list[float] | None = None, seed: int = 0, lengths: list[int] | None = None
) -> Mixture:
    chosen = weights or [1.0] * (max(sources) + 1)
    return make_mixture(np.array(sources, np.int32), np.array(lengths or [50] * len(sources), np.int64), chosen, size, seed)


@settings(max_examples=150)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.data(), st.integers(0, 99))
def test_no_row_comes_again_before_all_others_came(sources: list[int], data: st.DataObject, seed: int) -> None:
    rows, size = len(sources), data.draw(st.integers(1, len(sources)))
    lengths = data.draw(st.lists(st.integers(1, 5000), min_size=rows, max_size=rows))
    mixture = mixture_of(sources, size, seed=seed, lengths=lengths)
    for number in range(3):
        drawn = [int(row) for epoch in range(-(-(number + 1) * rows // size)) for row in mixture.drawn(epoch)]
        counts = Counter(drawn[: (number + 1) * rows // size * size])
        assert max(counts.values(), default=0) <= number + 1, "a row came again too early"
        assert all(Counter(drawn)[row] > number for row in range(rows)), "a row was left out"


def test_every_part_has_the_mix_of_the_whole() -> None:
    sources, lengths = [0] * 700 + [1] * 300, ([20] * 6 + [200] * 4) * 100
    mixture = mixture_of(sources, 100, lengths=lengths)
    for epoch in (0, 1, 9, 12_345):
        counts = Counter((sources[row], lengths[row]) for row in mixture.drawn(epoch))
        for stratum, expected in (((0, 20), 42), ((0, 200), 28), ((1, 20), 18), ((1, 200), 12)):
            assert abs(counts[stratum] - expected) <= 1


def test_another_part_each_epoch_and_another_seed_another_part() -> None:
    mixture = mixture_of([0] * 100, 25)
    first, second = set(mixture.drawn(0).tolist()), set(mixture.drawn(1).tolist())
    assert not first & second
    assert first != set(mixture_of([0] * 100, 25, seed=1).drawn(0).tolist())


@pytest.mark.parametrize(
    ("weights", "shares"), [([1.0, 3.0], (0.5, 0.5)), ([2.0, 1.0], (6 / 7, 1 / 7)), ([1e-3, 1.0], (0.003 / 1.003, 1 / 1.003))]
)
def test_a_weight_says_how_often_a_source_is_drawn_relative_to_its_rows(weights: list[float], shares: tuple[float, float]) -> None:
    sources = [0] * 750 + [1] * 250
    mixture = mixture_of(sources, 200, weights)
    drawn = [int(row) for epoch in range(50) for row in mixture.drawn(epoch)]
    assert len(drawn) == 10_000
    counts = Counter(sources[row] for row in drawn)
    assert [counts[0] / 10_000, counts[1] / 10_000] == pytest.approx(shares, abs=1e-3)
    for source in (0, 1):
        times = [Counter(drawn)[row] for row in range(1000) if sources[row] == source]
        assert max(times) - min(times) <= 1, "rows of one source are drawn equally often"


def test_the_drawn_rows_never_change() -> None:
    mixture = mixture_of([0] * 6 + [1] * 4, 5, [1.0, 2.0])
    table = StepTable(np.arange(10), 5, 0, mixture)
    assert [table.samples(step, 100) for step in (1, 2)] == [[2, 6, 4, 7, 9], [6, 8, 7, 3, 0]], (
        "runs made by earlier versions could not be resumed"
    )


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 30))
def test_any_step_follows_from_its_number_alone(rows: int, batch: int, size: int) -> None:
    size = min(size, rows)
    mixture = mixture_of([row % 2 for row in range(rows)], size, [1.0, 1.5])
    steps, samples = run_length(size, batch, 7, None)
    assert samples == 7 * size
    in_order = StepTable(np.arange(rows), batch, 0, mixture)
    drawn = [in_order.samples(step, samples) for step in range(1, steps + 1)]
    assert drawn == [StepTable(np.arange(rows), batch, 0, mixture).samples(step, samples) for step in range(1, steps + 1)]
    assert [in_order.samples(step, samples) for step in range(steps, 0, -1)] == drawn[::-1]
    flat = [row for step in drawn for row in step]
    for epoch in range(7):
        assert sorted(flat[epoch * size : (epoch + 1) * size]) == sorted(mixture.drawn(epoch).tolist())


def test_a_table_keeps_the_orders_of_two_epochs_at_most() -> None:
    table = StepTable(np.arange(10), 10, 0)
    for step in range(1, 20):
        table.samples(step, 1000)
    assert len(table._orders) == 2


# ---- as settings of a run


def test_a_run_draws_a_part_of_its_rows_by_weight(config_of: Write, tmp_path: Path) -> None:
    """60 rows of one file, 20 of another that counts three times as much: half of each step's rows are from each."""
    for name, rows in (("many", make_rows(60)), ("few", make_rows(80)[60:])):
        write_rows(tmp_path / f"{name}.jsonl", rows)
    config = config_of(
        data={"files": ["many.jsonl", "few.jsonl"], "held_out": 0.0, "rows_per_epoch": 20, "weights": {"few.jsonl": 3}},
        train={"steps": None, "epochs": 3, "effective_batch": 10},
        evaluate={"generate": 0},
    )
    run = tmp_path / "r"
    done = holdfast("train", config, "--run", run, "--json")
    assert done.returncode == 0, done.stderr
    plan = json.loads((run / "plan.json").read_text())
    assert (plan["steps"], plan["samples"], plan["rows"]) == (6, 60, {"train": 80, "held_out": 0, "per_epoch": 20})
    steps = [row["samples"] for row in lines(run / "steps.jsonl")]
    for epoch in range(3):
        drawn = steps[2 * epoch] + steps[2 * epoch + 1]
        assert abs(sum(row >= 60 for row in drawn) - 10) <= 2
    again = holdfast("train", config, "train.epochs=4", "--extend", "--run", run, "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["steps"] == 8


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"rows_per_epoch": 0}, "data.rows_per_epoch: 0: input should be greater than or equal to 1"),
        ({"weights": {"b.jsonl": 2}}, "data.weights: b.jsonl: not among data.files (a.jsonl)"),
        ({"weights": {"a.jsonl": 0}}, "data.weights.a.jsonl: 0: input should be greater than 0"),
        ({"weights": {"a.jsonl": float("inf")}}, "data.weights.a.jsonl: inf: input should be a finite number"),
        ({"weights": {"a.jsonl": "much"}}, "data.weights.a.jsonl: 'much': input should be a valid number"),
    ],
)
def test_a_mistake_in_these_settings_is_told(config_of: Write, tmp_path: Path, data: dict[str, object], says: str) -> None:
    write_rows(tmp_path / "a.jsonl", make_rows(3))
    with pytest.raises(Stop) as caught:
        load_config(config_of(data={"files": ["a.jsonl"]} | data))
    assert says in caught.value.message


def test_weights_follow_their_files_to_absolute_paths(config_of: Write, tmp_path: Path) -> None:
    write_rows(tmp_path / "a.jsonl", make_rows(3))
    config = load_config(config_of(data={"files": ["a.jsonl"], "weights": {"a.jsonl": 2}}))
    assert config.data.weights == {str(tmp_path / "a.jsonl"): 2.0}
    assert Config.model_validate(config.model_dump(mode="json")) == config


def test_more_rows_per_epoch_than_there_are(config_of: Write, tmp_path: Path) -> None:
    done = holdfast("train", config_of(data={"rows_per_epoch": 121}), "--run", tmp_path / "r")
    assert done.returncode == 1
    assert "data.rows_per_epoch is 121, but there are 120 rows to train on" in done.stderr
