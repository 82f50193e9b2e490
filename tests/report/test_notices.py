"""What events and incidents say to people: sentences with their numbers, no word of the program's own."""

from __future__ import annotations

import re

import pytest

from holdfast.base.files import Json
from holdfast.base.units import figure, loss_and_norm
from holdfast.cli.commands.diagnose import _told
from holdfast.report.notices import notice
from holdfast.verify.verdict import _word


@pytest.mark.parametrize(
    ("event", "says"),
    [
        ({"event": "length_bias", "pairs": 40, "longer": 0.0, "times": 0.47}, "in 0% of 40 pairs the better answer is the longer one"),
        (
            {
                "event": "rolled_back",
                "step": 3,
                "to": 0,
                "settings": {"lr_factor": 0.00025},
                "reason": "goes through with lr_factor = 0.00025",
            },
            "from step 3 to step 0: goes through with lr_factor = 0.00025",
        ),
        (
            {"event": "rolled_back", "step": 3, "to": 1, "settings": {"lr_factor": 0.1 + 0.2}, "reason": "it diverged"},
            "from step 3 to step 1, with lr_factor=0.3 from there on: it diverged",
        ),
        ({"event": "rolled_back", "step": 3}, "step: 3"),
        (
            {"event": "computes_differently", "first": "the output layer is no plain product", "again": ""},
            "said: the output layer is no plain product; repeated at once, it found nothing. The second result is taken",
        ),
        (
            {"event": "snapshot_interval", "step": 1304, "steps": 7, "reason": "one costs a step 9 ms of 149 ms"},
            "from step 1,304 on after one step in 7 (a death then costs up to 7 steps, computed again): one costs a step 9 ms of 149 ms",
        ),
        ({"event": "snapshot_interval", "step": 9, "steps": 1, "reason": "cheap"}, "from step 9 on after every step: cheap"),
        (
            {"event": "setting_changed", "what": "at_once 2 -> 1 from step 3 on", "reason": "no room"},
            "at_once 2 -> 1 from step 3 on; no room",
        ),
        (
            {"event": "remedy_applied", "remedy": "x", "settings": {"a": 1 / 3, "b": {}, "fused": False}, "rows": []},
            "remedy: x, settings: a=0.33333 b=none fused=no, rows: none",
        ),
    ],
)
def test_an_event_is_told_in_words(event: Json, says: str) -> None:
    found = notice(event | {"time": 1.0, "attempt": 2})
    assert found and says in found[1] and not re.search(r"[{}\[\]]|\d\.\d{6}", found[1])


@pytest.mark.parametrize(
    ("value", "says"),
    [("8.415071759905134", "8.4151"), (float("nan"), "NaN"), ("-inf", "minus infinite"), (None, "not computed"), ("None", "not computed")],
)
def test_a_figure_has_five_digits(value: object, says: str) -> None:
    assert figure(value) == says


@pytest.mark.parametrize(
    ("loss", "norm", "says"),
    [("nan", "nan", "loss and gradient norm are NaN"), (3.25, float("inf"), "loss 3.25, gradient norm infinite")],
)
def test_a_step_that_is_not_finite_is_told_in_words(loss: object, norm: object, says: str) -> None:
    assert loss_and_norm(loss, norm) == says


def test_where_one_test_was_made_nothing_was_corrected() -> None:
    loss = {"interval": (-0.5, -0.4)}
    assert _word(loss, {"loss"}, set(), {"loss": 0.01}, False) == ("better", "loss (p = 0.01)")
    assert "corrected for 2 tests" in _word(loss, {"loss"}, set(), {"loss": 0.01, "x": 0.5}, False)[1]


def test_a_diagnosis_says_a_sentence_once() -> None:
    says = "the run was stopped on request at step 24 of 400; nothing has failed"
    result = {"cause": "unknown", "confidence": 0.0, "clues": [{"line": None, "text": says}], "explanation": says}
    result |= {"remedies": [], "also": [], "cards": []}
    assert "\n".join(_told(result, "ours")).count(says) == 1
