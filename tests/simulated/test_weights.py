"""Quantised weights on a simulated card: read and placed layer by layer, measured where they fit, with the bits of the CPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from conftest import holdfast
from holdfast.base_model.folder import read_model
from holdfast.config.config import Config
from holdfast.planning.plan import make_plan
from simulated import card
from support.architectures import GQA
from support.stand import model_folder

pytestmark = card.needed

SIZES = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 12, "num_attention_heads": 4, "num_key_value_heads": 2}


def test_weights_in_fewer_bits_take_of_a_card_what_is_held_and_one_matrix_on_the_way(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    of_experts = GQA | {"hidden_size": 256, "head_dim": 64, "num_hidden_layers": 4, "num_attention_heads": 4}
    made = transformers.Qwen3MoeConfig(**of_experts, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=256)
    experts = model_folder(tmp_path / "experts", lambda: made, torch.bfloat16)
    wide = model_folder(tmp_path / "wide", dtype=torch.bfloat16, head_dim=64, **SIZES)
    how = transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    packed = transformers.AutoModelForCausalLM.from_pretrained(wide, quantization_config=how, dtype=torch.bfloat16)
    packed.save_pretrained(tmp_path / "packed")
    done = card.run(Path(__file__).parent / "weights_on_card.py", wide, tmp_path / "packed", experts, bitsandbytes=True)
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads(done.stdout.splitlines()[-1])
    matrix = 4 * SIZES["hidden_size"] * SIZES["intermediate_size"]  # bytes in fp32
    for name in ("nf4-bf16", "nf4-fp32", "fp4-fp16", "int8-bf16"):
        assert told[f"{name} start"] <= told[f"{name} held"] + 2.2 * matrix, told
        assert told[f"{name} restart"] <= told[f"{name} held"] + 0.2 * matrix, told
    stack = 4 * 8 * 512 * 256  # of gate and up of all experts of a layer
    assert told["experts start"] <= told["experts held"] + 2.2 * stack and told["experts held"] < 2.2 * stack, told
    assert told["experts restart"] <= max(told["experts held"], 2.2 * stack) + 0.2 * stack, "the first is held against its own"
    for name in ("packed start", "packed measured"):
        assert told[name] <= told["packed held"] + 2.2 * matrix, told
    assert told["fp32 start"] <= told["fp32 held"] + 0.2 * matrix, told
    peak = planned(wide, {"frozen": "nf4", "precision": "bf16", "micro_batch_tokens": 16})
    assert max(told["nf4-bf16 start"], told["nf4-bf16 restart"]) <= 1.1 * peak < 0.6 * told["fp32 held"], (peak, told)
    all_wide = told["measured"]
    assert told["nf4-bf16 start"] < 0.4 * all_wide, told
    assert told["measured as held"] <= 0.5 * all_wide and told["measured as held, 16-bit matrices read"] <= 4, told
    assert told["measured with 0.5 of it"] <= 0.5 * all_wide and told["measured with 0.01 of it"] <= 0.01 * all_wide, told


def planned(model: Path, train: dict[str, Any]) -> int:
    """Bytes of the card beside the process's context, as the closed form plans the least run of a model."""
    config = Config.model_validate({"model": str(model), "data": {"files": "x"}, "adapter": {"r": 1}, "train": train})
    machine = {"gpus": [{"vendor": "nvidia", "arch": "sm_90", "name": "a card", "memory_bytes": 8 << 30, "integrated": False}]}
    plan = make_plan(config, read_model(str(model)), machine, {"max": 16, "mean": 16.0, "rows": 8, "step": 16})
    return plan.peak_bytes - plan.bytes.context


def test_a_killed_run_in_4_bits_with_paged_moments_ends_as_one_that_was_not(config_of: Callable[..., Path], tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    kill = [{"name": "killed", "when": {"step": 4, "attempt": 1}, "effect": "kill"}]
    train = {"steps": 6, "deterministic": True, "frozen": "nf4", "optimizer": "paged", "precision": "bf16"}
    found = []
    for name, faults in (("whole", []), ("killed", kill)):
        config = config_of(name, train=train, faults=faults, evaluate={"generate": 0})
        done = holdfast("train", config, "--run", tmp_path / name, "--json", env=card.environment(bitsandbytes=True))
        assert done.returncode == 0, done.stderr
        assert json.loads((tmp_path / name / "frozen.json").read_text()).keys() == {"nf4-bf16"}, "no remedy has taken it back"
        found.append(json.loads(done.stdout))
    assert found[0]["artifact_sha256"] == found[1]["artifact_sha256"] and found[1]["attempts"] == 2
