"""Which part of a model a weight or module belongs to, by its name: what learns is told in these parts. Pure."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping

from holdfast.base_model.types import is_tower

PARTS = ("attention", "mlp", "experts", "router", "embeddings", "towers", "other")
STACKS = ("gate_up_proj", "down_proj")  # weights of all experts of a layer in one
_APART = re.compile(r"experts\.\d+\.")  # an expert by its number, in files that have each apart
_EMBEDDINGS = ("embed", "lm_head", "wte", "wpe", "embd")
_PASSED_OVER = {  # by model_type, modules whose weights fused code of Mamba layers reads; of the first two no code calls dt_proj
    **dict.fromkeys(("mamba", "falcon_mamba"), ("out_proj", "conv1d", "x_proj", "dt_proj")),
    **dict.fromkeys(("falcon_h1", "mamba2", "nemotron_h"), ("out_proj", "conv1d")),
}
_LOST = dict.fromkeys(("inkling2", "inkling2_text"), ("weight_proj",))  # by model_type, modules whose adapter PEFT does not find again
_NO_LORA = _PASSED_OVER | _LOST
_MLP = ("mlp", "feed_forward", "feedforward", "ffn", "moe", "fc1", "fc2", "shared_expert")


def part_of(name: str, wrapped: bool = False) -> str:
    """Return one of PARTS. wrapped: of a model that has towers; elsewhere a name that looks like one's belongs to the text."""
    words = name.lower().split(".")
    if wrapped and is_tower(name):
        return "towers"
    if is_router(name):
        return "router"
    if any(word.endswith("experts") and "shared" not in word for word in words):
        return "experts"
    attends = [at for at, word in enumerate(words[:-1]) if ("attn" in word or "attention" in word) and "norm" not in word]
    if attends:
        return "other" if any("norm" in word for word in words[attends[0] :]) else "attention"
    if any(part in word for word in words for part in _EMBEDDINGS):
        return "embeddings"
    if any(part in word for word in words for part in _MLP):
        return "other" if any("norm" in word for word in words) else "mlp"
    return "other"


def is_router(name: str) -> bool:
    """True if a module or weight, or a pattern of such names, says which experts a token goes to."""
    return any("router" in word or word in ("gate", "shared_expert_gate") for word in name.lower().split("."))


def takes_no_lora(model_type: object, name: str) -> bool:
    """True if LoRA on a module of this name would not ship: fused code of Mamba layers reads past it, or PEFT loses it as it loads."""
    return name.rpartition(".")[2] in _NO_LORA.get(str(model_type), ())


def why_no_lora(model_type: object) -> str:
    """Return why `takes_no_lora` says so of modules of this type of model."""
    if model_type in _PASSED_OVER:
        return f"fused code of {model_type} would pass over LoRA there"
    return f"PEFT renames the tensors of {model_type} as it loads them, and would not find LoRA there again"


def has_experts(names: Iterable[str]) -> bool:
    """True if a model with weights or modules of these names has experts: in another one, `gate` is an ordinary layer."""
    return any(part_of(name) == "experts" or "router" in name or "moe" in name for name in names)


def of_experts(parameters: Iterable[str] | None) -> bool:
    """True if an adapter's target_parameters are stacks of experts and nothing else."""
    return {name.rpartition(".")[2] for name in parameters or ()} <= {*STACKS}


def in_stacks(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Count the parameters that a model holds as stacks of experts: those of no linear layer. A file may have each expert apart."""
    return sum(
        math.prod(shape)
        for name, shape in shapes.items()
        if part_of(name) == "experts" and (len(shape) > 2 or (len(shape) == 2 and _APART.search(name)))
    )


def by_part(sizes: Mapping[str, int], wrapped: bool = False) -> dict[str, int]:
    """Sum parameters by part, in the order of PARTS; parts that have none are left out."""
    found: Counter[str] = Counter()
    for name, size in sizes.items():
        found[part_of(name, wrapped)] += size
    return {part: found[part] for part in PARTS if found[part]}
