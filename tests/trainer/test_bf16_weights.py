"""Trained weights in bf16: rounded at random and to the same bits each time, as good as fp32 where rounding to nearest learns nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save

from holdfast.config.config import Config
from holdfast.config.train import Train
from holdfast.trainer.common.images import TensorImage
from holdfast.trainer.optim.choose import optimizer_of
from holdfast.trainer.optim.optimizer import AdamW
from holdfast.trainer.optim.rounding import StochasticRounder
from support.architectures import LABELS, ROUNDINGS
from support.rounding import assert_equal_but_for_rounding, but_for_rounding
from support.stand import Stand, model_folder

SIZE = 20_001


def rounded(values: torch.Tensor, seed: int = 0, update: int = 1, number: int = 0) -> torch.Tensor:
    narrow = torch.zeros(len(values), dtype=torch.bfloat16)
    with StochasticRounder(seed, SIZE, narrow.device).widened(narrow, narrow, update, number) as (wide, _):
        wide.copy_(values)
    return narrow


def test_a_value_becomes_one_of_its_neighbours_and_keeps_its_mean() -> None:
    unit = 2.0**-7
    for value, share in ((1.0 + 0.25 * unit, 0.25), (1.0 + 0.9 * unit, 0.9), (1.0, 0.0)):
        for sign in (1.0, -1.0):
            found = rounded(torch.full((SIZE,), sign * value)).float()
            up = (found == sign * (1.0 + unit)).float().mean()
            spread = (share * (1 - share) / SIZE) ** 0.5
            assert up == pytest.approx(share, abs=5 * spread) and bool(((found == sign) | (found == sign * (1.0 + unit))).all())


def test_the_bits_drawn_follow_from_seed_update_and_place_alone() -> None:
    values = torch.rand(SIZE, generator=torch.Generator().manual_seed(1))
    first = rounded(values)
    assert torch.equal(first, rounded(values)) and torch.equal(first[:700], rounded(values[:700]))
    for other in ({"seed": 1}, {"update": 2}, {"number": 1}):
        assert not torch.equal(first, rounded(values, **other)), other


def test_a_block_of_many_stretches_has_the_bits_of_each_and_no_stretch_those_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("optim.optimizer.STRETCH", "optim.optimizer.Elementwise.STRETCH", "optim.eight_bit._ON_A_CPU"):
        monkeypatch.setattr(f"holdfast.trainer.{place}", 512)
    gradient = torch.rand(512).repeat(3)[:1400].bfloat16()
    for kind in ("adamw", "lion", "sgd", "adamw8bit"):
        if kind == "adamw8bit":
            pytest.importorskip("bitsandbytes")
        train = Train(steps=1, weights="bf16", optimizer=kind)  # type: ignore[arg-type]
        whole = optimizer_of({"a": torch.ones(1000).bfloat16(), "b": torch.ones(20, 20).bfloat16()}, train)
        assert len(getattr(whole, "stretches", ())) == 3
        whole.gradient.copy_(gradient)
        assert float(whole.norm()) == but_for_rounding(float(gradient.float().norm()), len(gradient))
        whole.step(1e-3)
        parts = whole.weights.split(512)
        one = optimizer_of({"a": torch.ones(512).bfloat16()}, train)
        one.gradient.copy_(gradient[:512])
        one.step(1e-3)
        assert torch.equal(parts[0], one.weights) and not torch.equal(parts[0], parts[1]), kind


def test_updates_far_below_a_unit_of_the_last_place_add_up() -> None:
    """200 updates of 1e-5 on weights of 1, whose neighbours are 0.0078 and 0.0039 away: to nearest, none of them would move one."""
    torch.set_num_threads(1)
    optimizer = AdamW({"a": torch.ones(SIZE, dtype=torch.bfloat16)}, Train(steps=1, weights="bf16"))
    for _ in range(200):
        optimizer.gradient.fill_(0.5)
        optimizer.step(1e-5)
    steps = 200e-5 / 2**-8  # of a neighbour's distance that a weight makes on average, a few in a hundred make one more or less
    assert 1.0 - float(optimizer.weights.float().mean()) == pytest.approx(200e-5, rel=5 / (steps * SIZE) ** 0.5)
    assert (torch.tensor(1.0) - 1e-5).bfloat16() == 1.0


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {kind: model_folder(folder / kind, kind, dtype=torch.bfloat16) for kind in ("qwen2", "gemma2", "gpt2")}


def stand_of(model: Path, weights: str, dtype: str, **adapter: Any) -> Stand:
    return Stand(model, train={"weights": weights, "lr": 1e-3}, adapter={"type": "full"} | adapter, settings={"dtype": dtype})


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", ["qwen2", "gemma2", "gpt2"])
def test_losses_are_those_of_fp32_weights_and_a_state_holds_all_that_later_steps_need(
    models: dict[str, Path], kind: str, dtype: str
) -> None:
    wide, stand = (stand_of(models[kind], weights, dtype if weights == "bf16" else "fp32") for weights in ("fp32", "bf16"))
    for step in range(1, 5):
        assert stand.step(step) == but_for_rounding(wide.step(step), ROUNDINGS / LABELS, torch.bfloat16)
    assert {one.dtype for one in stand.task.artifact.values()} == {torch.bfloat16}
    kept = stand.saved()
    losses = [stand.step(step) for step in (5, 6)]
    again = stand_of(models[kind], "bf16", dtype)
    again.restore(kept)
    assert [again.step(step) for step in (5, 6)] == losses and again.saved() == stand.saved()


def test_the_gradient_of_a_token_that_stands_often_is_summed_before_it_is_rounded(models: dict[str, Path]) -> None:
    found = {}
    for weights in ("fp32", "bf16"):
        stand = stand_of(models["gemma2"], weights, "fp32")
        stand.task.tokens.ids[:] = 7
        stand.compute(1)
        table = stand.task.artifact["model.embed_tokens.weight"].grad
        assert table is not None
        found[weights] = table[7].float()
    assert_equal_but_for_rounding(found["bf16"], found["fp32"], 1, torch.bfloat16)


def test_layers_are_trained_in_bf16_and_what_is_left_is_a_model_others_load(models: dict[str, Path], tmp_path: Path) -> None:
    stand = stand_of(models["qwen2"], "bf16", "fp32")
    for step in (1, 2):
        stand.step(step)
    (tmp_path / "model.safetensors").write_bytes(stand.artifact.to_bytes())
    (tmp_path / "config.json").write_text(json.dumps(stand.task.form.config))
    own = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert own.dtype == torch.bfloat16
    held = dict(own.named_parameters())
    assert all(torch.equal(held[name], value) for name, value in stand.task.artifact.items())
    some = stand_of(models["qwen2"], "bf16", "fp32", type="layers", layers=1)
    before = {name: value.detach().clone() for name, value in some.task.model.named_parameters()}
    some.step(1)
    moved = {name for name, value in some.task.model.named_parameters() if not torch.equal(before[name], value)}
    assert moved and moved <= set(some.task.artifact) and all("layers.1." in name for name in moved)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"train": {"weights": "bf16"}}, "adapter.type lora has few weights"),
    ({"adapter": {"type": "full"}, "train": {"weights": "bf16", "optimizer": "muon"}}, "muon would round small updates away"),
    ({"adapter": {"type": "full"}, "train": {"weights": "bf16", "precision": "fp16"}}, "precision fp16"),
    ({"adapter": {"type": "full"}, "train": {"offload": "optimizer", "optimizer": "adafactor"}}, "this is optimizer adafactor; paged is"),
    ({"adapter": {"type": "full"}, "train": {"offload": "optimizer", "optimizer": "paged"}}, "this is optimizer paged by itself"),
]


@pytest.mark.parametrize(("sections", "said"), WRONG)
def test_what_does_not_go_together_is_told(sections: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Config.model_validate({"model": "tiny", "data": {"files": "x"}} | sections)


def test_off_may_be_written_as_yaml_takes_it() -> None:
    assert Train(steps=1, offload=False).offload == "off"  # type: ignore[arg-type]


def test_a_state_is_laid_out_as_the_library_lays_it_out_without_a_copy_of_it() -> None:
    kinds = (torch.float32, torch.bfloat16, torch.uint8, torch.float64, torch.float16, torch.int64)
    tensors = {f"{name} ä": torch.zeros(3, 5).to(kind) for kind, name in zip(kinds, "badcfe", strict=True)} | {"step": torch.tensor(1.0)}
    for metadata in ({"format": "pt"}, None):
        whole, image = save(tensors, metadata), TensorImage(tensors, metadata)
        assert whole.startswith(image.header) and image.bytes == len(whole)
