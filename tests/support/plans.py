"""A plan as a run's start makes it, for tests that are about something else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.base_model.folder import ModelFacts
from holdfast.run.plan import Bytes, Params, Plan

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 256,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}
MODEL = ModelFacts(
    Path("m"),
    {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128, "vocab_size": 1000},
    {"model.embed_tokens.weight": (1000, 64), "l.q_proj.weight": (64, 64), "l.down_proj.weight": (64, 128), "norm.weight": (64,)},
    0,
)


def a_plan(**changes: Any) -> Plan:
    """A small run's plan; `changes` win."""
    facts: dict[str, Any] = {
        "fits": True,
        "peak_bytes": 1 << 20,
        "capacity_bytes": 1 << 30,
        "bytes": Bytes(weights=1 << 20),
        "params": Params(total=1 << 18, trainable=1 << 10),
        "precision": "fp32",
        "micro_batch_tokens": 64,
        "checkpointed_layers": 0,
        "accumulation": 1,
    }
    return Plan(**(facts | changes))
