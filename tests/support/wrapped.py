"""Tiny random checkpoints of text and images, as their config.json names them: a language model with a vision tower beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

KINDS = ("qwen3_5", "gemma3", "mistral3", "qwen2_5_vl", "qwen3_vl", "glm4v")
_TEXT: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "max_position_embeddings": 1024, "pad_token_id": 3, "bos_token_id": None, "eos_token_id": 2,
}  # fmt: skip
_VISION: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_heads": 4, "depth": 2,
    "image_size": 32, "patch_size": 8, "out_hidden_size": 64, "in_channels": 3, "in_chans": 3,
}  # fmt: skip
_OF_CLIP = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "image_size", "patch_size")
_TOKENS = {"image_token_id": 4, "video_token_id": 5, "vision_start_token_id": 6, "vision_end_token_id": 7}
_OLDER_TOKENS = {"image_token_index": 4, "boi_token_index": 5, "eoi_token_index": 6}
_LINEAR = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16}
_BY_THREE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}}
_OF_TEXT: dict[str, dict[str, Any]] = {  # by the type of the language model
    "qwen3_5_text": {"num_hidden_layers": 4, **_LINEAR},
    "qwen2_5_vl_text": _BY_THREE,
    "qwen3_vl_text": _BY_THREE,
    "glm4v_text": _BY_THREE,
}


def wrapped_folder(folder: Path, kind: str, vocabulary: int = 211, tokenizer: Path | None = None) -> Path:
    """A checkpoint of this model_type with random weights in bf16; with the tokenizer of another folder."""
    torch.manual_seed(0)
    made = transformers.CONFIG_MAPPING[kind]
    usual = made()
    text = usual.get_text_config().model_type
    sizes = _TEXT | {"vocab_size": vocabulary, "model_type": text} | _OF_TEXT.get(text, {})
    config = made(text_config=sizes, vision_config=_VISION | {"model_type": usual.vision_config.model_type}, **_TOKENS, **_OLDER_TOKENS)
    model = transformers.AutoModelForImageTextToText.from_config(config).to(torch.bfloat16)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.05) if parameter.dim() > 1 else None
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json") if tokenizer else ():
        (folder / name).write_bytes((tokenizer / name).read_bytes())  # type: ignore[operator]
    return folder


def git_folder(folder: Path, vocabulary: int = 211) -> Path:
    """A checkpoint of GIT with random weights: a causal language model whose config has a tower and no text_config."""
    torch.manual_seed(0)
    config = transformers.GitConfig(vision_config={name: _VISION[name] for name in _OF_CLIP}, **_TEXT | {"vocab_size": vocabulary})
    transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


def logits_of(model: Any) -> torch.Tensor:
    """Logits of 40 tokens, [1, 40, vocabulary]."""
    with torch.no_grad():
        logits: torch.Tensor = model.eval()(input_ids=torch.arange(20, 60)[None]).logits.float()
    return logits
