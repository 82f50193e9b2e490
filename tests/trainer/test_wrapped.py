"""Checkpoints of text and images: their language half learns, and PEFT finds the adapter on the class that their config.json names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from peft import AutoPeftModelForCausalLM, PeftModel
from safetensors.torch import load_file, save_file

from holdfast.base.files import sha256
from holdfast.base_model.folder import read_model
from holdfast.base_model.types import for_auto_peft
from holdfast.planning.memory.trained_size import trainable_parameters
from holdfast.run.adapter_folder import check_start, read_start, settled
from holdfast.trainer.common.images import TensorImage
from holdfast.trainer.common.refuse import Refusal, put_in
from support.stand import Stand
from support.wrapped import KINDS, git_folder, logits_of, wrapped_folder


def on_its_class(folder: Path) -> Any:
    return transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_the_language_half_learns_and_moves_the_logits_of_the_class_in_config_json(kind: str, tmp_path: Path) -> None:
    folder = wrapped_folder(tmp_path / "model", kind)
    stand = Stand(folder, settings={"packing": False})
    losses = [stand.step(step) for step in (1, 2, 3)]
    assert losses[-1] < losses[0]
    trained = stand.task.artifact
    assert not [name for name in trained if "vis" in name or "projector" in name]
    assert sum(tensor.numel() for tensor in trained.values()) == trainable_parameters(stand.config, read_model(str(folder)))
    (tmp_path / "adapter_model.safetensors").write_bytes(stand.artifact.to_bytes())
    (tmp_path / "adapter_config.json").write_text(json.dumps(stand.task.form.config))
    base = logits_of(on_its_class(folder))
    moved = logits_of(PeftModel.from_pretrained(on_its_class(folder), tmp_path)) - base
    assert float(moved.norm() / base.norm()) > 1e-2
    start = read_start(tmp_path)
    check_start(start, settled(stand.config.adapter, start.facts()), read_model(str(folder)))  # it can be trained further
    other = tmp_path / "of-the-language-half.safetensors"
    begun = {"path": str(tmp_path), "sha256": sha256(start.file)}
    put_in(TensorImage(stand.task.artifact), start.file, begun, stand.task.form.config)
    save_file({name.replace("language_model.", ""): tensor for name, tensor in load_file(start.file).items()}, other)
    with pytest.raises(Refusal, match="cannot be used"):
        put_in(TensorImage(stand.task.artifact), other, begun | {"sha256": sha256(other)}, {})
    by_peft = logits_of(AutoPeftModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)) - base
    assert float((by_peft - moved).norm()) <= 1e-4 * float(moved.norm())


def test_peft_is_told_the_class_of_a_wrapped_model_alone() -> None:
    wrapped = {"model_type": "qwen3_5", "architectures": ["Qwen3_5ForConditionalGeneration"], "text_config": {}}
    lora = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "auto_mapping": None}
    told = for_auto_peft(lora, wrapped)
    assert told["task_type"] is None and told["auto_mapping"]["base_model_class"] == "AutoModelForImageTextToText"
    causal = [{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, wrapped | {"model_type": "gemma3"}]
    assert all(for_auto_peft(lora, one) == lora for one in causal), "AutoModelForCausalLM is what training has"
    for other in (lora | {"task_type": "SEQ_CLS"}, lora | {"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 8}):
        assert for_auto_peft(other, wrapped) == other


@pytest.mark.parametrize(
    "targets",
    [
        ["self_attn.q_proj", "mlp.down_proj"],
        ["language_model.layers.1.self_attn.q_proj"],
        r"model\.language_model\.layers\.\d+\.self_attn\.(q|v)_proj",
        r"model\.language_model\..*_proj",
    ],
)
@pytest.mark.parametrize("kind", ["gemma3", "qwen2_5_vl"])
def test_the_plan_reads_targets_as_peft_does(kind: str, targets: str | list[str], tmp_path: Path) -> None:
    """They name modules of the class, whose language half has another place in the files; the plan of a CPU goes by these."""
    folder = wrapped_folder(tmp_path / "model", kind)
    stand = Stand(folder, settings={"packing": False}, adapter={"targets": targets})
    trained = sum(tensor.numel() for tensor in stand.task.artifact.values())
    assert trained and trained == trainable_parameters(stand.config, read_model(str(folder)))


@pytest.mark.parametrize("adapter", [{"type": "full"}, {"type": "layers", "layers": 1}], ids=["full", "layers"])
@pytest.mark.parametrize("kind", ["qwen3_5", "gemma3", "qwen2_5_vl"])
def test_towers_stay_as_they_were_where_weights_themselves_are_trained(kind: str, adapter: dict[str, Any], tmp_path: Path) -> None:
    folder = wrapped_folder(tmp_path / "model", kind)
    stand = Stand(folder, settings={"packing": False}, adapter=adapter)
    trained, facts = stand.task.artifact, read_model(str(folder))
    assert stand.step(1) > 0
    assert set(trained) <= set(facts.shapes), "each has the name it has in the model's own files"
    assert not [name for name in trained if "vis" in name or "projector" in name]
    assert sum(tensor.numel() for tensor in trained.values()) == trainable_parameters(stand.config, facts)
    assert stand.task.form.partial


@pytest.mark.parametrize("adapter", [{}, {"type": "full"}], ids=["lora", "full"])
def test_a_tower_inside_the_language_model_is_left_alone_too(adapter: dict[str, Any], tmp_path: Path) -> None:
    """GIT's config has no text_config: its image encoder, which rows of text never reach, lies beside the layers of the text."""
    stand = Stand(git_folder(tmp_path / "model"), settings={"packing": False}, adapter=adapter)
    assert stand.step(1) > 0
    trained, facts = stand.task.artifact, read_model(str(tmp_path / "model"))
    assert not [name for name in trained if "image_encoder" in name or "visual" in name]
    assert sum(tensor.numel() for tensor in trained.values()) == trainable_parameters(stand.config, facts)
    assert not [name for name, tensor in trained.items() if "lora_B" in name and not tensor.any()], "each of them learns"


def test_a_tower_that_is_named_is_trained(tmp_path: Path) -> None:
    folder = wrapped_folder(tmp_path / "model", "gemma3")
    stand = Stand(folder, settings={"packing": False}, adapter={"type": "layers", "layers": ["multi_modal_projector"]})
    assert stand.task.artifact and all("multi_modal_projector" in name for name in stand.task.artifact)
