"""The fault language: when a fault fires."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from conftest import settings_with
from holdfast.config.faults import Fault, Moment, When, fires

HERE: dict[str, Any] = {
    "phase": "forward",
    "attempt": 2,
    "step": 5,
    "tokens": 410,
    "samples": ("/data/rows.jsonl:17",),
    "count": 14,
    "settings": settings_with(attention="sdpa", dtype="bf16"),
    "env": {"A": "1"},
}


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        ({}, True),
        ({"tokens": (400, 410)}, True),
        ({"tokens": (411, 500)}, False),
        ({"setting": {"attention": "sdpa", "dtype": "bf16"}}, True),
        ({"setting": {"attention": "eager"}}, False),
        ({"step": 5, "attempt": 2}, True),
        ({"step": 5, "attempt": 1}, False),
        ({"sample": "rows.jsonl:17"}, True),
        ({"sample": "/data/rows.jsonl:17"}, True),
        ({"sample": "ows.jsonl:17"}, False),
        ({"sample": "rows.jsonl:1"}, False),
        ({"env": {"A": "1", "B": None}}, True),
        ({"env": {"A": None}}, False),
        ({"every": 7}, True),
        ({"every": 4}, False),
        ({"rank": 1}, False),
        ({"phase": "optimizer"}, False),
        ({"probability": 1.0}, True),
        ({"probability": 0.0}, False),
    ],
)
def test_all_conditions_of_a_fault_must_hold(when: dict[str, Any], expected: bool) -> None:
    assert fires(Fault(when=When(**when), effect="kill"), Moment(**HERE)) is expected


def test_a_probability_is_met_as_often_as_it_says() -> None:
    fault = Fault(when=When(probability=0.3), effect="kill")
    hits = Counter(fires(fault, Moment(**(HERE | {"count": count}))) for count in range(4000))
    assert hits[True] / 4000 == pytest.approx(0.3, abs=5 * (0.3 * 0.7 / 4000) ** 0.5)


def test_checkpoint_effects_belong_to_the_writer() -> None:
    fault = Fault(effect="torn_checkpoint")
    assert not fires(fault, Moment(**HERE))
    assert fires(fault, Moment("save", 1, step=5))
    with pytest.raises(ValueError, match="its phase can only be save"):
        Fault(effect="torn_checkpoint", when=When(phase="forward"))
