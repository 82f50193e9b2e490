"""What is said about the course of a run: real curves of healthy runs are never called ill, ill ones are noticed."""

from __future__ import annotations

import random
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import SHARED, events, holdfast, lines, needs_shared, write_rows
from holdfast.base.files import append_line, write_bytes
from holdfast.book import cards_of
from holdfast.book.kinds.sign import rows
from holdfast.config.config import Config
from holdfast.diagnosis.health_signs import first_word, odd
from holdfast.experiments.health import HealthWatch
from holdfast.run.folder import RunFolder

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
    assert first_word(steps, odd(steps, SIGNS)) == (
        "healthy after 10 steps: loss 3.000 -> 2.300 (median of the last 5), gradient norm 1.00 to 2.00"
    )
    worse = rows({"loss": [3.0, 9.0, *[6.0] * 8], "grad_norm": [1.0] * 10})
    assert first_word(worse, {}).startswith("the loss is higher than it began after 10 steps: loss 3.000 -> 6.000")
    risen = [row | {"loss": 3.0 if row["step"] == steps[0]["step"] else 3.4} for row in steps]
    assert first_word(risen, {}).startswith("nothing is odd, but the loss has not fallen yet, after 10 steps: loss 3.000 -> 3.400")
    ill = rows({"loss": [0.0] * 10})
    assert "exactly 0" in first_word(ill, odd(ill, SIGNS))


def watched(tmp_path: Path) -> tuple[RunFolder, HealthWatch]:
    run = RunFolder(tmp_path)
    run.write_config(Config.model_validate({"model": "m", "data": {"files": ["f"]}}))
    return run, HealthWatch(run)


def look(watch: HealthWatch) -> set[str]:
    """The signs told after another look."""
    watch.look(at_once=True)
    return watch.told


@pytest.mark.parametrize("taken_back", [False, True])
def test_evaluations_are_looked_at_as_they_come_and_forgotten_where_they_were_taken_back(tmp_path: Path, taken_back: bool) -> None:
    run, watch = watched(tmp_path)
    for step in range(1, 41):
        append_line(run.steps_file, {"step": step, "loss": 3.0 - step / 40, "grad_norm": 1.0, "lr": 1e-4})
        if step in (10, 20, 30):
            append_line(run.evaluations_file, {"step": step, "loss": 2.0 + step / 40})
    assert look(watch) == {"first"}, "three rises are needed"
    if taken_back:
        write_bytes(run.evaluations_file, b'{"step": 10, "loss": 2.25}\n')
    append_line(run.evaluations_file, {"step": 40, "loss": 3.0})
    append_line(run.steps_file, {"step": 41, "loss": 1.9, "grad_norm": 1.0, "lr": 1e-4})
    assert look(watch) == {"first"} | (set() if taken_back else {"held-out-worse"})


def test_a_remedy_that_did_not_help_is_told_once_and_none_is_looked_for_where_none_was_applied(tmp_path: Path) -> None:
    run, watch = watched(tmp_path)
    ended: dict[str, Any] = {"attempt": 1, "step": 7, "diagnosis": {"cause": "hang"}, "decision": {}}
    run.event("attempt_ended", **ended)
    watch.tell_refuted()
    run.event("remedy_applied", step=5, remedy="fp32", cause="hang")
    watch.remedied = True
    run.event("attempt_ended", **ended)
    for _ in range(2):
        watch.tell_refuted()
    assert [event["remedy"] for event in run.events() if event["event"] == "remedy_refuted"] == ["fp32"]
    again = HealthWatch(run)
    again.tell_refuted()
    assert len([event for event in run.events() if event["event"] == "remedy_refuted"]) == 1


@needs_shared
def test_a_curve_without_token_accuracy_is_never_accused_of_it() -> None:
    for file in CURVES.glob("*/*.jsonl"):
        assert "no-token-right" not in told(lines(file)[:300]), file.name


@pytest.mark.parametrize("learnable", [True, False])
def test_labels_nobody_can_predict_are_told_after_ten_steps(config_of: Callable[..., Path], tmp_path: Path, learnable: bool) -> None:
    """Real runs: characters in a random order, none twice (a model with random weights says what it was just told), and the usual rows."""
    chance, letters = random.Random(4), string.ascii_letters + string.digits
    noise = [{"instruction": f"Say {at}", "output": "".join(chance.sample(letters, k=30))} for at in range(120)]
    config = config_of(train={"steps": 12}, run={"standby": False})
    files = [] if learnable else [f"data.files={write_rows(tmp_path / 'noise.jsonl', noise)}"]
    done = holdfast("train", config, *files, "--run", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    rows = lines(tmp_path / "run/steps.jsonl")
    first = next(event["says"] for event in events(tmp_path / "run", "sign") if event["sign"] == "first")
    assert ("label tokens of the first 10 steps were predicted right" in first) is not learnable, first
    assert all(0 <= row["token_accuracy"] <= 1 for row in rows)
    assert (sum(row["token_accuracy"] for row in rows[:10]) > 0.1) is learnable


def test_a_gradient_is_not_called_clipped_by_a_sign_that_does_not_know_the_limit() -> None:
    """With train.max_grad_norm 1e9 a gradient of 2,380 was called clipped, and the step had moved the weights by all of it."""
    says = cards_of("signs")["norm-spike"].look(rows({"grad_norm": [0.8] * 20 + [2380.0]}))
    assert says and "jumped to 2.38e+03" in says and "it is clipped" not in says
