"""Mixtures of experts are planned as they are held: stacks of experts as wide as what is computed, or in 4 and 8 bits where they can be."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from conftest import ROOT, holdfast
from holdfast.base.errors import Stop
from holdfast.base_model.folder import EMBEDDED, ModelFacts, read_model
from holdfast.base_model.parts import in_stacks
from holdfast.config.config import Config
from holdfast.config.settings import Settings
from holdfast.planning.memory.arithmetic import footprint
from holdfast.planning.memory.frozen_form import as_it_comes
from holdfast.planning.memory.trained_size import is_wrapped, trained_by_part, weights_by_part
from holdfast.trainer.model.load import load_base, loader
from holdfast.trainer.model.trained.adapters import PeftAdapter
from holdfast.trainer.model.trained.parts import parts_of
from support.architectures import GQA

sys.path.insert(0, str(ROOT / "benchmarks" / "models"))

from tiny_model import make

KINDS: dict[str, Any] = {
    "mixtral": lambda: transformers.MixtralConfig(**GQA, num_local_experts=4, num_experts_per_tok=2),
    "qwen3_moe": lambda: transformers.Qwen3MoeConfig(**GQA, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, head_dim=8),
    "gpt_oss": lambda: transformers.GptOssConfig(**GQA, head_dim=8, num_local_experts=4, num_experts_per_tok=2),
}
OWN_PRODUCT = transformers.JetMoeConfig(**GQA, num_local_experts=4, num_experts_per_tok=2, kv_channels=16)
ATTENTION = {"model.layers.0.self_attn.q_proj.weight": (32, 32), "model.embed_tokens.weight": (211, 32)}
APART = {f"model.layers.0.block_sparse_moe.experts.{number}.w{at}.weight": (48, 32) for number in range(4) for at in (1, 2, 3)}
STACKED = {"model.layers.0.mlp.experts.gate_up_proj": (4, 96, 32), "model.layers.0.mlp.experts.down_proj": (4, 32, 48)}
GRANITE = {f"model.layers.0.block_sparse_moe.{at}put_linear.weight": (4, 48, 32) for at in ("in", "out")}


def config_of(model: str, **train: Any) -> Config:
    return Config.model_validate({"model": model, "data": {"files": "rows.jsonl"}, "adapter": {"r": 4}, "train": train})


def facts(shapes: dict[str, tuple[int, ...]], kind: str = "mixtral") -> ModelFacts:
    return ModelFacts(Path("m"), {"model_type": kind, "hidden_size": 32, "num_hidden_layers": 1}, shapes, 0, "BF16")


@pytest.mark.parametrize("kind", KINDS)
def test_a_mixture_of_experts_is_planned_with_its_stacks_as_wide_as_what_is_computed(kind: str, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(KINDS[kind]().to_dict() | {"dtype": "bfloat16"}))
    train = "train: {max_tokens: 64, effective_batch: 4, precision: fp32}"
    (tmp_path / "c.yaml").write_text(f"model: model\ndata: {{files: rows.jsonl}}\nadapter: {{r: 4, targets: [q_proj]}}\n{train}\n")
    done = holdfast("plan", tmp_path / "c.yaml", "--json")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    frozen = plan["params"]["total"] - plan["params"]["trainable"]
    stacks = 2 * 4 * 3 * 32 * (16 if kind == "qwen3_moe" else 48)
    assert plan["bytes"]["weights"] == pytest.approx(2 * frozen + 2 * stacks, rel=0.02), (
        "all but stacks in 16 bits; norms and the like wide"
    )


@pytest.mark.parametrize(("kind", "form"), [("qwen3_moe", "nf4"), ("gpt_oss", "int8")])
def test_experts_in_fewer_bits_are_planned_as_the_loaded_model_has_them(kind: str, form: str, tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    loader_class = transformers.AutoModelForCausalLM
    loader_class.from_config(KINDS[kind](), dtype=torch.bfloat16).save_pretrained(tmp_path / "model")
    tree = {"model": "model", "data": {"files": "rows.jsonl"}, "adapter": {"r": 4}, "train": {"frozen": form, "max_tokens": 64}}
    (tmp_path / "c.yaml").write_text(json.dumps(tree | {"train": tree["train"] | {"precision": "fp32", "attention": "eager"}}))
    plan = json.loads(holdfast("plan", tmp_path / "c.yaml", "--json").stdout)
    chosen = {"frozen": form, "dtype": "fp32", "attention": "eager", "steps": 1, "samples": 1, "threads": 1, "micro_batch_tokens": 64}
    model = load_base(
        Config.model_validate(tree | {"model": str(tmp_path / "model")}), Settings.model_validate(chosen), torch.device("cpu")
    )[0]
    held = sum(parameter.nbytes for parameter in model.parameters())  # the scales of blocks are counted as workspace
    assert plan["bytes"]["weights"] == pytest.approx(held, rel=0.02)


@pytest.mark.parametrize("shapes", [APART, STACKED], ids=["apart", "stacked"])
def test_the_closed_form_counts_stacks_as_they_are_held(shapes: dict[str, tuple[int, ...]]) -> None:
    model = facts(ATTENTION | shapes)
    stacked = sum(map(math.prod, shapes.values()))
    assert in_stacks(model.shapes) == stacked == 4 * 3 * 48 * 32
    weights = {precision: footprint(config_of("m"), model, precision, 64).fixed["weights"] for precision in ("fp32", "bf16")}
    rest = model.parameters() - stacked
    assert weights == {"fp32": 2 * rest + 4 * stacked, "bf16": 2 * model.parameters()}
    linear = 32 * 32
    few = footprint(config_of("m", frozen="nf4"), model, "fp32", 64)
    assert few.fixed["weights"] == int(2 * (rest - linear) + 0.5625 * (linear + stacked))
    assert few.fixed["workspace"] == footprint(config_of("m"), model, "fp32", 64).fixed["workspace"] + 4 * stacked * 2 // 3, (
        "gate and up, widened"
    )


@pytest.mark.parametrize("form", ["nf4", "int8"])
@pytest.mark.parametrize("shapes", [APART, STACKED, GRANITE], ids=["apart", "stacked", "granite"])
def test_fewer_bits_are_refused_where_most_would_stay_in_16(form: str, shapes: dict[str, tuple[int, ...]]) -> None:
    with pytest.raises(Stop, match=rf"train.frozen {form} .* [67]\d% of the weights of m are experts in stacks"):
        as_it_comes(config_of("m", frozen=form), facts(ATTENTION | shapes, "jetmoe"))
    as_it_comes(config_of("m", frozen="half"), facts(ATTENTION | shapes, "jetmoe"))
    as_it_comes(config_of("m", frozen=form), facts(ATTENTION, "jetmoe"))
    as_it_comes(config_of("m", frozen=form), facts(ATTENTION | shapes))


@pytest.mark.parametrize(("frozen", "offered"), [("auto", True), ("nf4", False)])
def test_four_bits_are_offered_where_a_plan_does_not_fit_and_names_none(frozen: str, offered: bool, tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(KINDS["qwen3_moe"]().to_dict() | {"dtype": "bfloat16"}))
    train = f"train: {{frozen: {frozen}, max_tokens: 64, effective_batch: 1}}"
    (tmp_path / "c.yaml").write_text(f"model: model\ndata: {{files: rows.jsonl}}\nadapter: {{r: 4, targets: [q_proj]}}\n{train}\n")
    plan = json.loads(holdfast("plan", tmp_path / "c.yaml", "--card", "RTX 4090", "--memory", "100MiB", "--json").stdout)
    found = [one["peak_bytes"] for one in plan["alternatives"] if one["change"] == "train.frozen=nf4"]
    assert not plan["fits"] and len(found) == offered and all(peak < plan["peak_bytes"] for peak in found)


def test_fewer_bits_are_refused_by_a_config_json_alone(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(OWN_PRODUCT.to_dict()))
    (tmp_path / "c.yaml").write_text("model: model\ndata: {files: rows.jsonl}\nadapter: {r: 4}\ntrain: {frozen: nf4}\n")
    done = holdfast("plan", tmp_path / "c.yaml")
    assert done.returncode == 1 and "experts in stacks" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("kind", "adapter"),
    [
        ("hrm_text", ["self_attn.q_proj", "self_attn.o_proj"]),  # by path: its files have another word there
        *((kind, "lora") for kind in ("jamba", "laguna", "lfm2_moe", "deepseek_v3", "qwen2_moe")),
        ("deepseek_v3", "adalora"),
        *((kind, "lora") for kind in ("hunyuan_vl", "minicpmv4_6", "paddleocr_vl")),  # parts of a tower, by names that do not say so
        *((kind, "lora") for kind in ("ctrl", "hrm_text", "prophetnet")),  # a table called w, layers apart, a layer called embeddings
    ],
)
@pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern")
def test_what_is_said_to_learn_is_what_carries_an_adapter_in_the_built_model(kind: str, adapter: str | list[str], tmp_path: Path) -> None:
    make(kind, tmp_path, EMBEDDED["tiny"], 3584)
    tree = {
        "model": str(tmp_path),
        "data": {"files": "rows.jsonl"},
        "adapter": {"r": 4} | ({"type": adapter} if isinstance(adapter, str) else {"targets": adapter}),
    }
    config, model = Config.model_validate(tree), read_model(str(tmp_path))
    made = PeftAdapter(loader(model).from_pretrained(tmp_path, dtype=torch.float32), config, 1, torch.device("cpu"))
    built = parts_of(made.model, made.tensors, is_wrapped(model))
    assert trained_by_part(config, model) == built.learns
    assert weights_by_part(model).get("towers") == built.weights.get("towers")
