"""Small random models of several families with an adapter each, and a child that measures in this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers
from peft import AdaLoraConfig, IA3Config, LoraConfig, PeftConfig, PeftModel, get_peft_model
from torch import nn

from holdfast.export import child
from holdfast.trainer.jobs.measure import measure as job

SHAPE = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
SHAPE |= {"max_position_embeddings": 256, "eos_token_id": 2, "pad_token_id": 0, "bos_token_id": None}
FAMILIES: dict[str, Callable[[int], Any]] = {
    "llama": lambda words: transformers.LlamaConfig(**SHAPE, vocab_size=words, tie_word_embeddings=False),
    "mistral": lambda words: transformers.MistralConfig(**SHAPE, vocab_size=words, sliding_window=None),
    "qwen2": lambda words: transformers.Qwen2Config(**SHAPE, vocab_size=words, tie_word_embeddings=True),
    "qwen3": lambda words: transformers.Qwen3Config(**SHAPE, vocab_size=words, head_dim=16, tie_word_embeddings=True),
    "mixtral": lambda words: transformers.MixtralConfig(
        **SHAPE, vocab_size=words, sliding_window=None, num_local_experts=3, num_experts_per_tok=2
    ),
    "qwen3_moe": lambda words: transformers.Qwen3MoeConfig(
        **SHAPE, vocab_size=words, head_dim=16, num_experts=12, num_experts_per_tok=2, moe_intermediate_size=48, norm_topk_prob=True
    ),
    "olmoe": lambda words: transformers.OlmoeConfig(
        **SHAPE | {"num_key_value_heads": 4}, vocab_size=words, num_experts=4, num_experts_per_tok=2
    ),
    "gemma": lambda words: transformers.GemmaConfig(**SHAPE, vocab_size=words, head_dim=16),
    "gemma2": lambda words: transformers.Gemma2Config(
        **SHAPE, vocab_size=words, head_dim=16, query_pre_attn_scalar=16, sliding_window=64
    ),
    "gemma3": lambda words: transformers.Gemma3TextConfig(
        **SHAPE | {"num_hidden_layers": 6}, vocab_size=words, head_dim=16, query_pre_attn_scalar=16, sliding_window=24
    ),
}  # fmt: skip


def make_family(family: str, source: Path, out: Path, **changes: Any) -> Path:
    """A random model in bf16 with the tokenizer of the model folder `source`, its weights large enough to matter.

    changes: settings of its config.
    """
    words = json.loads((source / "config.json").read_text())["vocab_size"]
    torch.manual_seed(1)
    config = FAMILIES[family](words)
    for name, value in changes.items():
        setattr(config, name, value)
    model = transformers.AutoModelForCausalLM.from_config(config)
    middle = 0.0 if family.startswith("gemma") else 1.0  # Gemma's norms are stored without their 1
    for name, parameter in model.named_parameters():
        nn.init.normal_(parameter, middle if "norm" in name else 0.0, 0.2)
    model.bfloat16().save_pretrained(out)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (source / name).exists():
            (out / name).write_bytes((source / name).read_bytes())
    return out


def make_adapter(base: Path, out: Path, size: float = 0.1, **changes: Any) -> Path:
    """A random LoRA adapter that changes the model by more than rounding does."""
    torch.manual_seed(2)
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model.name_or_path = str(base)
    wrapped: PeftModel = get_peft_model(model, _adapter_config(**changes))
    for name, parameter in wrapped.named_parameters():
        if "lora_" in name and "magnitude" not in name:
            nn.init.normal_(parameter, std=size)
        elif "trainable_tokens" in name:
            nn.init.normal_(parameter, std=2 * size)
        elif "ia3_" in name:
            nn.init.normal_(parameter, 1.0, 2 * size)
    wrapped.peft_config["default"].base_model_name_or_path = str(base)
    wrapped.save_pretrained(out)
    return out


def _adapter_config(kind: str = "lora", **changes: Any) -> PeftConfig:
    if kind == "ia3":
        return IA3Config(task_type="CAUSAL_LM", **changes)
    common = {"lora_alpha": 8, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}
    if kind == "adalora":
        return AdaLoraConfig(**common | {"init_r": 4, "total_step": 10} | changes)
    return LoraConfig(**common | {"r": 4} | changes)


def measure_here(folder: Path, samples: Any, parts: list[Any], env: Mapping[str, str], *_: Any) -> dict[str, child.PartAnswer]:
    """What the child would find, without a process for it; what was found of one thing is kept."""
    known = json.dumps(parts[:1], sort_keys=True) + str(samples.sources)
    if known in _FOUND:
        return {parts[0]["name"]: _FOUND[known]} | (measure_here(folder, samples, parts[1:], env) if parts[1:] else {})
    folder.mkdir(parents=True, exist_ok=True)
    samples.save(folder / "rows.npz")
    request = {"rows": str(folder / "rows.npz"), "out": str(folder), "threads": 1, "parts": parts}
    (folder / "request.json").write_text(json.dumps(request))
    code = job(folder / "request.json")
    assert code == 0, (folder / "error.json").read_text()
    found = {part["name"]: child._read(folder, part["name"]) for part in parts}
    if parts[0]["name"] == "reference":
        one = found["reference"]
        _FOUND[known] = replace(one, logits=one.logits.copy(), hidden=one.hidden.copy())
    return found


_FOUND: dict[str, Any] = {}
