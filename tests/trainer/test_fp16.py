"""fp16 with a scaled loss: near fp32, overflow told from NaN, a skipped step a step like any other, to the bit after a kill."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import holdfast, lines
from holdfast.trainer.optim.loss_scale import LossScale
from support.architectures import LABELS, ROUNDINGS
from support.rounding import but_for_rounding
from support.stand import Stand, model_folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("model"), dtype=torch.bfloat16)


def stand_of(model: Path, dtype: str = "fp16", **adapter: Any) -> Stand:
    return Stand(model, settings={"dtype": dtype}, adapter=adapter)


def times(factor: float) -> Callable[..., float]:
    """What multiplies each micro-batch's loss."""
    return lambda phase, *_: factor if phase == "forward" else 1.0


@pytest.mark.parametrize("adapter", [{}, {"type": "dora", "dropout": 0.1}, {"type": "full"}])
def test_a_step_is_near_that_in_fp32_and_its_state_is_all_that_later_steps_need(model: Path, adapter: dict[str, Any]) -> None:
    wide, stand = stand_of(model, "fp32", **adapter), stand_of(model, **adapter)
    assert stand.task.prove() == ({}, "")
    ours, theirs = stand.compute(1), wide.compute(1)
    assert ours.loss == but_for_rounding(theirs.loss, ROUNDINGS / LABELS, torch.float16)
    assert ours.grad_norm == but_for_rounding(theirs.grad_norm, ROUNDINGS, torch.float16)
    losses = [stand.step(step) for step in range(1, 4)]
    kept = stand.saved()
    losses += [stand.step(step) for step in range(4, 6)]
    again = stand_of(model, **adapter)
    again.restore(kept)
    assert [again.step(step) for step in range(4, 6)] == losses[3:] and again.saved() == stand.saved()
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("held", [{}, {"frozen": "nf4"}])
def test_fp16_that_nobody_asked_for_is_left_where_a_model_overflows_in_it(model: Path, held: dict[str, str]) -> None:
    if held:
        pytest.importorskip("bitsandbytes")
    stand = Stand(model, settings={"dtype": "fp16"} | held)
    kept = [weight.clone() for weight in stand.task.model.parameters()]
    assert stand.task.prove() == ({}, "")
    assert all(torch.equal(weight, before) for weight, before in zip(stand.task.model.parameters(), kept, strict=True))
    scale = stand.task.base.model.layers[1].post_attention_layernorm.weight
    scale.data.mul_(1e5)
    changes, reason = stand.task.prove()
    assert changes == {"dtype": "fp32"} and "in fp16 this model's logits overflow" in reason
    asked = Stand(model, settings={"dtype": "fp16"}, train={"precision": "fp16"})
    asked.task.base.model.layers[1].post_attention_layernorm.weight.data.mul_(1e5)
    assert "dtype" not in asked.task.prove()[0], "who asks for it has it"


def test_gradients_too_small_for_fp16_arrive_all_the_same(model: Path) -> None:
    wide, stand = stand_of(model, "fp32"), stand_of(model)
    small = times(1e-6)
    for one in (wide, stand):
        one.step(1)  # a fresh adapter's first matrix has no gradient
    wanted = but_for_rounding(wide.compute(2, announce=small).grad_norm, ROUNDINGS, torch.float16)
    assert stand.compute(2, announce=small).grad_norm == wanted
    stand.training.scale = None
    assert stand.compute(2, announce=small).grad_norm < 0.9 * wide.compute(2, announce=small).grad_norm


def test_overflow_skips_the_step_and_halves_the_scale_and_is_replayed_to_the_bit(model: Path) -> None:
    stand = stand_of(model)
    stand.step(1)
    before = stand.saved()
    computed = stand.compute(2, announce=times(1e3))
    assert computed.skipped and computed.finite and computed.scale == 2.0**16 and math.isfinite(computed.grad_norm)
    assert stand.training.apply(2, computed)
    assert stand.saved()[0] == before[0] and stand.saved()[1] != before[1]
    assert stand.compute(3).scale == 2.0**15
    again = stand_of(model)
    again.restore(before)
    again.step(2, times(1e3))
    assert again.saved() == stand.saved()


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_what_is_nan_without_the_scale_too_does_not_pass_for_overflow(model: Path, phase: str) -> None:
    stand = stand_of(model)
    before = stand.saved()
    computed = stand.compute(1, announce=lambda now, *_: math.nan if now == phase else 1.0)
    assert not computed.finite and not computed.skipped
    assert not stand.training.apply(1, computed) and stand.saved() == before


def test_the_scale_grows_after_two_thousand_updates_without_overflow_and_stays_a_power_of_two_in_bounds() -> None:
    scale = LossScale()
    for _ in range(1999):
        scale.follow(skipped=False)
    assert scale.value.item() == 2.0**16
    scale.follow(skipped=False)
    assert scale.value.item() == 2.0**17
    for _ in range(40):
        scale.follow(skipped=True)
    assert scale.value.item() == 1.0 and scale.since.item() == 0.0
    for _ in range(40 * 2000):
        scale.follow(skipped=False)
    assert scale.value.item() == LossScale.LIMITS[0]


def test_a_killed_run_ends_as_one_that_was_not_and_counts_its_skipped_step_once(config_of: Callable[..., Path], tmp_path: Path) -> None:
    spike = {"name": "spike", "when": {"step": 2, "phase": "forward"}, "effect": "spike", "factor": 3000}
    kills = [
        {"name": f"kill {step}", "when": {"attempt": n, "step": step, "phase": "backward"}, "effect": "kill"}
        for n, step in ((1, 2), (2, 3))
    ]
    config = config_of("fp16", train={"precision": "fp16", "steps": 4}, evaluate={"generate": 0})
    found = []
    for name, faults in (("quiet", [spike]), ("killed", [spike, *kills])):
        file = tmp_path / f"{name}.yaml"
        file.write_text(json.dumps(faults))
        done = holdfast("train", config, "--run", tmp_path / name, "--faults", file, "--json")
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout))
    assert found[0]["artifact_sha256"] == found[1]["artifact_sha256"] and found[1]["attempts"] == 3
    rows = lines(tmp_path / "killed/steps.jsonl")
    assert [(row["step"], row["skipped"], row["loss_scale"]) for row in rows] == [
        (1, False, 2**16), (2, True, 2**16), (3, False, 2**15), (4, False, 2**15)
    ]  # fmt: skip
