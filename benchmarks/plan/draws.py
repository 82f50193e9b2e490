"""Shapes of runs drawn by seed, from 12 million to half a billion parameters, for benchmarks of what a plan says."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "phi3", "olmo2")
FROZEN = ("auto", "fp32", "half", "nf4", "fp4", "int8")
OPTIMIZERS = ("adamw", "adamw8bit", "adafactor", "lion", "muon", "sgd")
ADAPTERS = ("lora", "rslora", "dora", "adalora", "ia3", "prompt", "full", "layers")
OBJECTIVES = ("dpo", "orpo", "simpo", "kto")  # the scalar head of a reward is not traced yet
_REFERRING, _WITHOUT_BASE = ("dpo", "kto"), ("full", "layers")  # what looks at the model without its adapter; what has none
MOST_OPERATIONS = 6e10  # of a drawn step: a hundred of them end within an hour


def draws(seed: int, count: int, kinds: bool = False, objectives: bool = False, most: float = MOST_OPERATIONS) -> Iterator[dict[str, Any]]:
    """`count` runs: {seed, number, model (a config.json), adapter, settings, lengths, labels, stored}.

    kinds: of all adapters, optimizers and ways to hold frozen weights, in place of LoRA, AdamW and the file's own; objectives: of pairs
    and marks, too; most: operations of a step.
    """
    chance, other, third = random.Random(seed), random.Random(~seed), random.Random(f"objectives of {seed}")
    made = 0
    while made < count:
        drawn = _draw(chance, most)
        if drawn is not None:
            drawn = _of_a_kind(drawn, other) if kinds else drawn
            yield {"seed": seed, "number": made} | (_with_objective(drawn, third) if objectives else drawn)
            made += 1


def _with_objective(drawn: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    kind = drawn["adapter"].get("type", "lora")
    able = [name for name in OBJECTIVES if name not in _REFERRING or kind not in _WITHOUT_BASE]
    return drawn | {"train": drawn.get("train", {}) | {"objective": chance.choice(able)}}


def _of_a_kind(drawn: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    kind, optimizer, frozen = chance.choice(("lora", *ADAPTERS)), chance.choice(OPTIMIZERS), chance.choice(FROZEN)
    if kind in ("full", "layers"):
        adapter: dict[str, Any] = {"type": kind} | ({"layers": chance.randint(1, 2)} if kind == "layers" else {})
        frozen = "auto"
    elif kind in ("prompt", "ia3"):
        adapter = {"type": kind}
    else:
        adapter = drawn["adapter"] | {"type": kind}
    changed = {"frozen": frozen, "double_quant": frozen in ("nf4", "fp4") and chance.random() < 0.5}
    if kind == "prompt":
        changed["packing"] = False
    return drawn | {"adapter": adapter, "train": {"optimizer": optimizer}, "settings": drawn["settings"] | changed}


def _draw(chance: random.Random, most: float) -> dict[str, Any] | None:
    kind = chance.choice(ARCHITECTURES)
    heads = chance.choice((4, 6, 8, 12, 14, 16))
    size = chance.choice((32, 64))
    hidden = heads * size
    groups = chance.choice([count for count in (1, 2, 4, heads) if heads % count == 0])
    middle = 64 * round(hidden * chance.uniform(2, 6) / 64)
    vocabulary = chance.choice((8000, 32000, 50304, 151936))
    layers = chance.randint(2, 20)
    model = {
        "model_type": kind,
        "hidden_size": hidden,
        "intermediate_size": middle,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "head_dim": size,
        "vocab_size": vocabulary,
        "tie_word_embeddings": chance.random() < 0.5,
        "max_position_embeddings": 8192,
        "pad_token_id": 0,
    } | ({"sliding_window": 256} if kind.startswith("gemma") else {})
    body = layers * (hidden * size * (2 * heads + 2 * groups) + 3 * hidden * middle)
    total = body + vocabulary * hidden * (1 if model["tie_word_embeddings"] else 2)
    if not 12e6 <= total <= 5e8:
        return None
    longest = min(8192, int(2 ** chance.uniform(6, 13)))
    samples = chance.randint(1, max(1, min(8, 8192 // longest)))
    lengths = [longest, *(chance.randint(max(8, longest // 4), longest) for _ in range(samples - 1))]
    tokens = sum(lengths)
    labels = round(tokens * chance.choice((0.1, 0.5, 1.0)))
    if 6 * body * tokens + 6 * labels * vocabulary * hidden > most:
        return None
    attention = "eager" if chance.random() < 0.15 and longest <= 1024 else "sdpa"
    checkpointed = chance.choice((0, 0, chance.randint(1, layers), layers))
    settings = {
        "device": "cpu",
        "dtype": chance.choice(("fp32", "fp32", "bf16")),
        "attention": attention,
        "packing": chance.random() < 0.75,
        "micro_batch_tokens": max(lengths) * len(lengths),
        "checkpointed_layers": checkpointed,
        "threads": 2,
        "steps": 1,
        "samples": 1,
    }
    adapter = {
        "r": chance.choice((4, 8, 16, 32, 64)),
        "alpha": 32,
        "dropout": chance.choice((0.0, 0.0, 0.1)),
        "targets": "all-linear" if chance.random() < 0.7 or kind == "phi3" else ["q_proj", "v_proj"],
    }
    stored = chance.choice(("F32", "BF16", "BF16"))
    return {
        "model": model,
        "adapter": adapter,
        "settings": settings,
        "lengths": lengths,
        "labels": labels,
        "stored": stored,
        "total": total,
    }
