"""What vLLM and SGLang ignore of an adapter in silence, on the adapters and models of their own users' reports."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from holdfast.base_model.folder import ModelFacts
from holdfast.base_model.parts import by_part, part_of
from holdfast.base_model.server_keys import ignored, older_servers
from holdfast.config.config import Config
from holdfast.export.card import serve_line
from holdfast.planning.serving_limits import limits

Q = "self_attn.q_proj.lora_A.weight"


def wrapped(kind: str, own: str) -> dict[str, Any]:
    return {"model_type": kind, "architectures": [own], "text_config": {}}


QWEN35, QWEN3_VL = wrapped("qwen3_5", "Qwen3_5ForConditionalGeneration"), wrapped("qwen3_vl", "Qwen3VLForConditionalGeneration")
GEMMA, QWEN25_VL = wrapped("gemma3", "Gemma3ForConditionalGeneration"), wrapped("qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration")
TEXT = {"model_type": "qwen3_5_text", "architectures": ["Qwen3_5ForCausalLM"]}
IDEFICS, GEMMA4 = wrapped("idefics3", "Idefics3ForConditionalGeneration"), wrapped("gemma4", "Gemma4ForConditionalGeneration")
MISTRAL3 = wrapped("mistral3", "Mistral3ForConditionalGeneration")
MOLMO2 = wrapped("molmo2", "Molmo2ForConditionalGeneration")
QWEN35_MOE = wrapped("qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration")
STACKED = [f"base_model.model.model.language_model.layers.0.mlp.experts.{own}lora_A.weight" for own in ("base_layer.", "")]
MOE = {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"]}


@pytest.mark.parametrize(
    ("config", "keys", "says", "all_of_it"),
    [
        (QWEN35, [f"base_model.model.model.layers.0.{Q}"], "answers as the base", True),  # vllm#39369
        (QWEN3_VL, [f"base_model.model.model.layers.0.{Q}"], "answers as the base", True),  # vllm#48019
        (QWEN3_VL, [f"base_model.model.model.language_model.layers.0.{Q}"], "", False),  # vllm#48022: works
        (QWEN35, [f"base_model.model.model.language_model.layers.0.{Q}", "base_model.model.lm_head.lora_A.weight"], "", False),
        (GEMMA, [f"base_model.model.model.layers.0.{Q}"], "answers as the base", True),
        (QWEN25_VL, [f"base_model.model.model.layers.0.{Q}"], "", False),  # the older names are mapped there, too
        (GEMMA4, [f"base_model.model.model.layers.0.{Q}"], "", False),  # vLLM 0.33, gemma4.py, mistral3.py
        (MISTRAL3, [f"base_model.model.model.layers.0.{Q}"], "", False),  # vllm#34186: silent then; mistral3.py of 0.33 maps them
        (MISTRAL3, [f"base_model.model.model.language_model.layers.0.{Q}"], "", False),
        (IDEFICS, [f"base_model.model.model.text_model.layers.0.{Q}"], "", False),  # vLLM 0.33, idefics3.py: its own modules are named so
        (MOLMO2, [f"base_model.model.model.language_model.layers.0.{Q}"], "answers as the base", True),  # vLLM's molmo2.py: qkv_proj
        (QWEN35_MOE, STACKED, "vLLM 0.33 serves it", True),  # is_3d_moe_weight
        (QWEN35_MOE, STACKED[1:], "do not serve", True),  # _stack_moe_lora_weights asserts that both are there
        (TEXT, [f"base_model.model.model.layers.0.{Q}"], "", False),
        (
            QWEN25_VL,  # vllm#23796, sglang#28784
            [f"base_model.model.model.language_model.layers.0.{Q}", "base_model.model.model.visual.blocks.12.attn.qkv.lora_A.weight"],
            "--enable-tower-connector-lora",
            False,
        ),
        (MOE, ["base_model.model.model.layers.0.mlp.experts.base_layer.lora_A.weight"], "stacked experts", True),  # vllm#41384
        (MOE, ["base_model.model.model.layers.0.mlp.experts.3.down_proj.lora_A.weight"], "", False),
        (MOE, [f"base_model.model.model.layers.0.vision_gate.{Q}"], "", False),  # no towers in a model of text
    ],
)
def test_what_a_server_ignores_in_silence_is_known(config: dict[str, Any], keys: list[str], says: str, all_of_it: bool) -> None:
    found = ignored(config, keys)
    assert bool(found) is bool(says), found
    assert all(says in one.why and one.all is all_of_it for one in found)


@pytest.mark.parametrize(
    ("kind", "told"), [("gemma4", True), ("gemma4_text", True), ("gemma4_unified", True), ("gemma3", False), ("", False)]
)
def test_an_adapter_that_older_servers_clear_is_told_before_training_and_in_the_card(kind: str, told: bool) -> None:
    base = ModelFacts(Path("base"), {"model_type": kind}, {}, 0, "BF16")
    said = limits(Config.model_validate({"model": "tiny", "data": {"files": "x"}}), base)
    assert [*said] == older_servers(base.config) and bool(said) is told  # vllm#39815
    about = {"peft_type": "LORA", "r": 8}
    subject: Any = SimpleNamespace(config=about, facts=base, name="a", adapter_tensors={})
    with patch("holdfast.export.card._own_files", lambda *_: ""):
        card = serve_line(subject, Path("out"))
    assert card.startswith("```bash\nvllm serve") and all(one in card for one in said)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", "attention"),
        ("model.language_model.layers.0.linear_attn.in_proj_a", "attention"),
        ("transformer.h.0.attn.c_attn.weight", "attention"),
        ("transformer.blocks.0.norm_attn_norm.attn.Wqkv.weight", "attention"),
        ("transformer.blocks.0.norm_attn_norm.norm_1.weight", "other"),
        ("model.layers.0.self_attn.q_norm.weight", "other"),
        ("model.layers.0.post_attention_layernorm.weight", "other"),
        ("model.layers.0.mlp.gate_proj.weight", "mlp"),
        ("model.layers.0.mlp.shared_expert.gate_proj.weight", "mlp"),
        ("model.layers.0.mlp.shared_experts.up_proj.weight", "mlp"),
        ("model.layers.0.mlp.experts.gate_up_proj", "experts"),
        ("model.layers.0.block_sparse_moe.experts.0.w1.weight", "experts"),
        ("model.layers.0.block_sparse_moe.input_linear.weight", "experts"),
        ("model.layers.0.shared_mlp.input_linear.weight", "mlp"),
        ("model.layers.0.mlp.gate.weight", "router"),
        ("model.layers.0.mlp.router.weight", "router"),
        ("model.layers.0.mlp.shared_expert_gate.weight", "router"),
        ("model.embed_tokens.weight", "embeddings"),
        ("lm_head.weight", "embeddings"),
        ("model.visual.blocks.0.attn.qkv.weight", "towers"),
        ("multi_modal_projector.linear_1.weight", "towers"),
        ("model.sam_model.blocks.0.attn.qkv.weight", "towers"),
        ("patch_merge_mlp.linear_1.weight", "towers"),
        ("blocks.0.mlp.linear_fc1.weight", "towers"),
        ("transformer.blocks.0.mlp.fc1.weight", "mlp"),
    ],
)
def test_a_name_tells_the_part_of_the_model(name: str, part: str) -> None:
    assert part_of(name, wrapped=True) == part
    assert by_part({name: 3}, wrapped=True) == {part: 3}
