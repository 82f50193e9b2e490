"""The step table, the split of rows, the learning rate's schedule and the settings in force at a step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.config.settings import Settings
from holdfast.run.sampling.step_table import StepTable, learning_rate, run_length, split_rows
from holdfast.run.timeline import Entry, settings_at, unlearned

PLAN = {"steps": 9, "samples": 9, "micro_batch_tokens": 400, "threads": 2}


@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 1000), st.integers(1, 4))
def test_every_epoch_sees_every_row_once(rows: int, batch: int, seed: int, epochs: int) -> None:
    steps, samples = run_length(rows, batch, epochs, None)
    table = StepTable(np.arange(100, 100 + rows), batch, seed)
    drawn = [number for step in range(1, steps + 1) for number in table.samples(step, samples)]
    assert len(drawn) == rows * epochs
    for epoch in range(epochs):
        assert sorted(drawn[epoch * rows : (epoch + 1) * rows]) == list(range(100, 100 + rows))


@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 9), st.integers(1, 3), st.integers(1, 3))
def test_an_extended_run_sees_every_row_of_every_epoch_once(rows: int, batch: int, seed: int, epochs: int, more: int) -> None:
    table = StepTable(np.arange(rows), batch, seed)
    steps, samples = run_length(rows, batch, epochs, None)
    drawn = [number for step in range(1, steps + 1) for number in table.samples(step, samples)]
    behind = steps * batch - samples
    longer, all_samples = run_length(rows, batch, epochs + more, None, behind)
    drawn += [number for step in range(steps + 1, longer + 1) for number in table.samples(step, all_samples, behind)]
    whole = StepTable(np.arange(rows), len(drawn), seed)
    assert len(drawn) == rows * (epochs + more) and drawn == whole.samples(1, len(drawn))
    assert run_length(rows, batch, None, longer + 1, behind) == (longer + 1, (longer + 1) * batch - behind)


def test_the_order_depends_on_seed_and_epoch_and_never_changes() -> None:
    table = StepTable(np.arange(8), 8, 0)
    assert table.samples(1, 16) == [0, 2, 1, 5, 4, 3, 6, 7], "runs made by earlier versions could not be resumed"
    assert table.samples(2, 16) != table.samples(1, 16)
    assert StepTable(np.arange(8), 8, 1).samples(1, 16) != table.samples(1, 16)
    with pytest.raises(IndexError):
        table.samples(3, 16)


@given(st.lists(st.integers(1, 500), min_size=1, max_size=40), st.integers(1, 12), st.integers(1, 200), st.integers(0, 99))
def test_the_largest_step_of_a_run_is_known_before_it_begins(lengths: list[int], batch: int, samples: int, seed: int) -> None:
    table = StepTable(np.arange(len(lengths)), batch, seed)
    samples = min(samples, 10 * len(lengths))  # as far as it looks
    tokens = [sum(lengths[row] for row in table.samples(step, samples)) for step in range(1, -(-samples // batch) + 1)]
    step, largest = table.largest_step(np.array(lengths), samples)
    assert (largest, tokens[step - 1]) == (max(tokens), max(tokens))
    assert table.largest_step(np.array(lengths))[1] >= largest, "of a run without end"


@given(st.integers(1, 500), st.floats(0, 0.5), st.integers(0, 99))
def test_rows_are_split_into_two_parts_without_loss(rows: int, share: float, seed: int) -> None:
    training, held_out = split_rows(rows, share, seed)
    assert sorted([*training, *held_out]) == list(range(rows))
    assert len(training)
    assert share > 0 or not len(held_out)
    assert abs(len(held_out) - share * rows) <= 1


@pytest.mark.parametrize(
    ("schedule", "warmup", "expected"),
    [
        ("constant", 0, [1, 1, 1, 1]),
        ("linear", 0, [1, 0.75, 0.5, 0.25]),
        ("linear", 2, [0.5, 1, 1, 0.5]),
        ("cosine", 0.5, [0.5, 1, 1, 0.5]),
        ("constant", 9, [0.25, 0.5, 0.75, 1]),
    ],
)
def test_the_learning_rate_warms_up_and_falls(schedule: str, warmup: float, expected: list[float]) -> None:
    assert [learning_rate(step, 4, 1.0, schedule, warmup) for step in range(1, 5)] == pytest.approx(expected)


def test_the_timeline_gives_the_settings_in_force() -> None:
    entries = [Entry(1, PLAN), Entry(5, {"threads": 1, "quarantine": [3]})]
    assert settings_at(entries, 4) == Settings(steps=9, samples=9, micro_batch_tokens=400, threads=2)
    assert settings_at(entries, 5) == Settings(steps=9, samples=9, micro_batch_tokens=400, threads=1, quarantine=(3,))


def test_what_a_row_taught_about_memory_is_unlearned_and_nothing_else() -> None:
    learned = [Entry(5, {"micro_batch_tokens": 200}), Entry(5, {"checkpointed_layers": 2})]
    entries = [Entry(1, PLAN), Entry(3, {"micro_batch_tokens": 300}), *learned, Entry(5, {"attention": "eager"})]
    assert unlearned(entries, 5) == {"micro_batch_tokens": 300, "checkpointed_layers": 0}
    assert unlearned(entries, 6) == {}
