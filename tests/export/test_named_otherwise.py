"""Models whose files name tensors otherwise than the model does are merged by PEFT under the names of the files."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import save_file

from conftest import ROOT
from holdfast.base.errors import Stop
from holdfast.base_model.folder import read_model
from holdfast.export.delta import UnplacedPart
from holdfast.export.merge import merged_bytes, merged_tensors
from holdfast.export.subject import read_subject
from holdfast.export.tensors import held_tensors, write_shards
from holdfast.trainer.model.trained.saved import with_adapter

sys.path.insert(0, str(ROOT / "benchmarks" / "models"))

from tiny_model import tiny_config

SIZES: dict[str, Any] = {
    "vocab_size": 211, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256, "pad_token_id": 0, "num_experts": 4,
    "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "first_k_dense_replace": 1,
}  # fmt: skip
KINDS = {  # and a layer that is named otherwise in its files
    "hy_v3": "shared_experts.gate_proj",
    "lfm3": "self_attn.g_proj",
    "deepseek_v4": "self_attn.q_a_proj",  # whose files hold a table of whole numbers, too
}

LAYERS: dict[str, Any] = {"lfm3": {"layer_types": ["conv", "full_attention"]}}


def folders(kind: str, folder: Path) -> tuple[Path, Path]:
    """A random model in bf16, and a random adapter on it."""
    torch.manual_seed(0)
    sizes = SIZES | LAYERS.get(kind, {})
    config = tiny_config(kind, 211) if kind == "deepseek_v4" else transformers.CONFIG_MAPPING[kind](**sizes)
    model = transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1) if parameter.dim() > 1 else None
    model.save_pretrained(folder / "base")
    own = transformers.AutoModelForCausalLM.from_pretrained(folder / "base", dtype=torch.float32)
    tuned = get_peft_model(
        own, LoraConfig(r=4, target_modules=["q_proj", KINDS.get(kind, "shared_experts.gate_proj")], init_lora_weights=False)
    )
    tuned.save_pretrained(folder / "adapter")
    return folder / "base", folder / "adapter"


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model.eval()(input_ids=torch.arange(20, 60)[None]).logits
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_it_computes_what_base_and_adapter_do(kind: str, tmp_path: Path) -> None:
    base, adapter = folders(kind, tmp_path)
    subject = read_subject(adapter)
    with pytest.raises(UnplacedPart, match="no tensor for"):
        merged_tensors(subject)
    coming, delta = merged_tensors(subject, wide=True, work=tmp_path / "work")
    (tmp_path / "merged").mkdir()
    write_shards(tmp_path / "merged", coming)
    shutil.copyfile(base / "config.json", tmp_path / "merged" / "config.json")
    held, before = held_tensors(tmp_path / "merged"), held_tensors(base)
    assert set(held) == set(before) and merged_bytes(subject) > 0
    alike = [name for name in held if name not in delta.changes]
    assert alike and all((held[name].raw() == before[name].raw()).all() for name in alike), "what nothing changes keeps its bits"
    made = transformers.AutoModelForCausalLM
    wanted = logits(PeftModel.from_pretrained(made.from_pretrained(base, dtype=torch.float32), adapter))
    found, was = (logits(made.from_pretrained(place, dtype=torch.float32)) for place in (tmp_path / "merged", base))
    assert float((found - wanted).norm() / wanted.norm()) < 1e-5 < 1e-2 < float((was - wanted).norm() / wanted.norm())


def test_an_adapter_that_peft_loads_a_part_of_is_refused(tmp_path: Path) -> None:
    """PEFT 0.21 renames shared_experts of Laguna, which has that name already, and passes its tensors over."""
    subject = read_subject(folders("laguna", tmp_path)[1])
    with pytest.raises(UnplacedPart, match="no tensor for"):
        merged_tensors(subject, work=tmp_path / "work")


def test_an_adapter_that_peft_loads_a_part_of_is_not_measured(tmp_path: Path) -> None:
    base, adapter = folders("laguna", tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    with pytest.raises(Stop, match="PEFT does not find all of this adapter") as stop:
        with_adapter(model, adapter)
    assert "shared_experts" in stop.value.message


def test_an_adapter_of_another_model_is_still_refused_with_what_it_lacks(tmp_path: Path) -> None:
    _, adapter = folders("hy_v3", tmp_path)
    own = transformers.AutoModelForCausalLM.from_config(transformers.CONFIG_MAPPING["llama"](**SIZES))
    own.save_pretrained(tmp_path / "other")
    subject = read_subject(adapter, str(tmp_path / "other"))
    with pytest.raises(UnplacedPart, match="no tensor for"):
        merged_tensors(subject, work=tmp_path / "work")


def test_a_table_of_whole_numbers_makes_no_model_one_of_mixed_types(tmp_path: Path) -> None:
    """What all its matrices are stored in decides how it is held and planned."""
    weights = {"layers.0.gate.tid2eid": torch.zeros(211, 2, dtype=torch.int64), "lm_head.weight": torch.zeros(211, 8).bfloat16()}
    save_file(weights, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert read_model(str(tmp_path)).stored == "BF16"
