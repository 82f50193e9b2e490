"""Experts in stacks held in 4 and 8 bits: what they give is what the widened stacks give, and nothing wide is kept for backward."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from holdfast.base.errors import Stop
from holdfast.base_model.folder import ModelFacts, read_model
from holdfast.base_model.types import multiplies_stacks
from holdfast.config.config import Config
from holdfast.config.settings import Settings
from holdfast.planning.memory.frozen_form import as_it_comes
from holdfast.planning.memory.trained_size import trained_by_part
from holdfast.trainer.common.refuse import Refusal
from holdfast.trainer.model.frozen import quantised
from holdfast.trainer.model.frozen.experts import stacks_of
from holdfast.trainer.model.frozen.halves import widened
from holdfast.trainer.model.load import load_base
from support.architectures import GQA
from support.stand import Stand, model_folder

pytest.importorskip("bitsandbytes")
pytest.importorskip("transformers.integrations.moe")
SIZES: dict[str, Any] = GQA | {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16}
TYPES = {
    "qwen3_moe": lambda: transformers.Qwen3MoeConfig(**SIZES, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64),
    "gpt_oss": lambda: transformers.GptOssConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2),  # [experts, in, out], with biases
    "jetmoe": lambda: transformers.JetMoeConfig(**GQA, num_local_experts=4, num_experts_per_tok=2, kv_channels=16),
}
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {kind: model_folder(folder / kind, made, torch.bfloat16) for kind, made in TYPES.items()}


def config_of(model: Path, form: str, **adapter: Any) -> Config:
    return Config.model_validate({"model": str(model), "data": {"files": "rows.jsonl"}, "adapter": adapter, "train": {"frozen": form}})


def loaded(model: Path, form: str, double: bool = False, dtype: str = "fp32") -> Any:
    chosen = {"frozen": form, "double_quant": double, "dtype": dtype, "attention": "eager"}
    settings = Settings.model_validate({"steps": 1, "samples": 1, "threads": 1, "micro_batch_tokens": 64, **chosen})
    return load_base(config_of(model, form), settings, CPU)[0]


def passed(model: Any) -> tuple[list[torch.Tensor], int]:
    """Return what a pass gives, forward and backward, and how many numbers the largest tensor has that is kept in between."""
    kept: list[int] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.numel())
        return tensor

    torch.manual_seed(3)
    given = torch.randn(1, 7, 64).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = model(inputs_embeds=given, attention_mask=torch.ones(1, 7)).logits
    (back,) = torch.autograd.grad(logits.float().square().sum(), given)
    return [logits, back], max(kept)


ODD = ("gpt_oss", "nf4", False, "fp32")
QWEN = [("qwen3_moe", "nf4", False, "fp32"), ("qwen3_moe", "nf4", True, "bf16"), ("qwen3_moe", "int8", False, "fp32")]


@pytest.mark.parametrize(("kind", "form", "double", "dtype"), [*QWEN, ODD])
def test_a_pass_through_held_experts_is_one_through_the_widened_ones(
    models: dict[str, Path], kind: str, form: str, double: bool, dtype: str
) -> None:
    held, wide = (loaded(models[kind], form, double, dtype) for _ in range(2))
    stacks = list(stacks_of(held))
    assert len(stacks) == 4 and not any(getattr(module, own).is_floating_point() for _, module, own in stacks)
    smallest = min(getattr(module, own).of_shape.numel() for _, module, own in stacks)
    for _, module, own in list(stacks_of(wide)):
        weight = getattr(module, own)
        setattr(module, own, torch.nn.Parameter(widened(weight, weight.computed), requires_grad=False))
    (ours, most), (theirs, theirs_most) = passed(held), passed(wide)
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True)) and ours[1].abs().max() > 0
    assert most < smallest <= theirs_most, "nothing as large as a stack waits for backward"


def test_stacks_are_quantised_once_and_read_from_what_was_kept(models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    first = loaded(models["qwen3_moe"], "nf4")
    monkeypatch.setattr(quantised, "_parts", lambda *_: pytest.fail("they lie there"))
    again = loaded(models["qwen3_moe"], "nf4")
    assert again.held.sha256 == first.held.sha256 and not again.held.fault
    assert all(torch.equal(one.data, other.data) for one, other in zip(first.parameters(), again.parameters(), strict=True))


def test_a_broken_stack_is_a_fault_of_the_format(models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantised, "_open_cached", lambda *_: None)
    parts = quantised._parts

    def broken(weight: torch.Tensor, *rest: Any) -> dict[str, torch.Tensor]:
        return parts(weight * 1.5 if len(weight) == 4 * 64 else weight, *rest)  # the stack of gate and up, or of down

    monkeypatch.setattr(quantised, "_parts", broken)
    assert "experts" in loaded(models["qwen3_moe"], "nf4").held.fault


@pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys did not match")  # PEFT's own, of experts in 16 bits
def test_all_linear_leaves_held_experts_as_they_are_and_the_plan_says_so(models: dict[str, Path]) -> None:
    stand = Stand(models["qwen3_moe"], settings={"frozen": "nf4"}, train={"frozen": "nf4", "lr": 1e-2})
    losses = [stand.step(step) for step in range(1, 4)]
    assert losses[-1] < losses[0]
    learns = trained_by_part(config_of(models["qwen3_moe"], "nf4"), read_model(str(models["qwen3_moe"])))
    assert set(learns) == {"attention"}
    trained = [name for name, one in stand.task.base.named_parameters() if one.requires_grad]
    assert trained and all(".self_attn." in name for name in trained)
    wide = Stand(models["qwen3_moe"], settings={})
    assert {"experts"} < set(trained_by_part(wide.config, read_model(str(models["qwen3_moe"])))), "in 16 bits they learn"


def test_experts_that_are_to_learn_are_refused_in_fewer_bits(models: dict[str, Path]) -> None:
    named = {"targets": ["q_proj", "gate_proj", "up_proj", "down_proj"]}
    with pytest.raises(Refusal, match=r"experts of this model are held in 4 or 8 bits.*gate_up_proj") as told:
        Stand(models["qwen3_moe"], settings={"frozen": "nf4"}, train={"frozen": "nf4"}, adapter=named)
    assert "adapter.targets: [q_proj" in told.value.hint
    apart = {f"model.layers.0.mlp.experts.{one}.{part}_proj.weight": (32, 64) for one in range(4) for part in ("gate", "up", "down")}
    facts = ModelFacts(Path("m"), {"model_type": "qwen3_moe", "hidden_size": 64, "num_hidden_layers": 1}, apart, 0, "BF16")
    with pytest.raises(Stop, match="the adapter is to change them"):
        as_it_comes(config_of(Path("m"), "nf4", **named), facts)
    as_it_comes(config_of(Path("m"), "nf4"), facts)


def test_a_type_that_multiplies_its_experts_in_a_way_of_its_own_is_refused(models: dict[str, Path]) -> None:
    assert multiplies_stacks("qwen3_moe") and multiplies_stacks("gpt_oss") and not multiplies_stacks("jetmoe")
    assert not multiplies_stacks("no such type") and not multiplies_stacks(None)
    with pytest.raises(Stop, match=r"code of jetmoe multiplies in a way of its own"):
        as_it_comes(config_of(models["jetmoe"], "nf4"), read_model(str(models["jetmoe"])))
