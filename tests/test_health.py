"""What is said about the course of a run: real curves of healthy runs are never called ill, ill ones are noticed."""

from __future__ import annotations

from typing import Any

import pytest

from conftest import SHARED, lines, needs_shared
from holdfast.book import cards_of
from holdfast.core.sign import rows
from holdfast.mind.health import first_word, odd

SIGNS = list(cards_of("signs").values())
ILL = {"divergence", "zero-loss", "still"}
CURVES = SHARED / "data" / "curves"


def told(steps: list[dict[str, Any]]) -> set[str]:
    """Every sign that is seen at any moment of a run."""
    return {name for at in range(1, len(steps) + 1) for name in odd(steps[:at], SIGNS)}


@needs_shared
@pytest.mark.parametrize("kind", ["healthy", "spike_recovered"])
def test_runs_that_were_well_are_not_called_ill(kind: str) -> None:
    wrong = {}
    for file in sorted((CURVES / kind).glob("*.jsonl")):
        if found := told(lines(file)[:1500]) & ILL:
            wrong[file.name] = found
    assert not wrong


@needs_shared
def test_runs_that_were_ill_are_noticed() -> None:
    """Those of a handful of logged points are too short to tell, and a NaN never becomes a committed step."""
    noticed = {file.name.split("_")[0]: told(lines(file)[:1500]) for file in sorted((CURVES / "unhealthy").glob("*.jsonl"))}
    expected = {"alpaca": "still", "llamafactory": "zero-loss", "deeplab": "spike"}
    assert {name: sign for name, sign in expected.items() if sign in noticed[name]} == expected


def test_the_first_word_gives_the_numbers() -> None:
    steps = rows({"loss": [3.0 - at / 10 for at in range(10)], "grad_norm": [1.0] * 9 + [2.0], "lr": [1e-4] * 10})
    assert first_word(steps, odd(steps, SIGNS)) == "healthy after 10 steps: loss 3.000 -> 2.100, gradient norm 1.00 to 2.00"
    ill = rows({"loss": [0.0] * 10})
    assert "exactly 0" in first_word(ill, odd(ill, SIGNS))
