"""Which part of a model a weight or module belongs to, by its name: what learns is told in these parts. Pure."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping

from holdfast.base.files import Json
from holdfast.base_model.types import is_tower

PARTS = ("attention", "mlp", "experts", "router", "embeddings", "towers", "other")
STACKS = ("gate_up_proj", "down_proj")  # weights of all experts of a layer in one
_APART = re.compile(r"experts\.\d+\.")  # an expert by its number, in files that have each apart
_STACKED = ("input_linear", "output_linear")  # of Granite's block_sparse_moe, beside whose experts no word says so
_EMBEDDINGS = ("embed", "lm_head", "wte", "wpe", "embd")
_BY_PEFT = dict.fromkeys(("falcon_h1", "nemotron_h", "mamba2"), ("out_proj", "conv1d"))  # by model_type: PEFT refuses these, as named below
_READ_PAST = {  # by model_type, layers whose weight the model's code, or fused code that it calls, multiplies with beside the layer
    **_BY_PEFT,
    **dict.fromkeys(("mamba", "falcon_mamba"), ("out_proj", "conv1d", "x_proj", "dt_proj")),
    **dict.fromkeys(("bamba", "granitemoehybrid", "zamba2"), ("out_proj",)),
    "jamba": ("dt_proj",),
    **dict.fromkeys(("gemma3n", "gemma3n_text"), ("correction_coefs",)),  # clipped while it trains
}
_GROUPED = {"deepseek_v4": ("o_a_proj", "wo_a")}  # of several products, beside which LoRA is one; the second as files name it
_LOST = dict.fromkeys(("inkling2", "inkling2_text"), ("weight_proj",))  # layers whose adapter PEFT does not find again
_UNLEARNED = {  # words in names of modules that no loss of next tokens depends on smoothly, or at all, or whose change none could merge
    **dict.fromkeys(("shared_transf", "shared_transformer"), "is one weight of several layers, and each would learn a change of its own"),
    "indexer": "chooses what attention sees, through which no gradient comes",
    **dict.fromkeys(("encoder_attn", "cross_attn"), "reads what an encoder gives, and rows of text have none"),
    "patcher": "chooses where patches of bytes end, through which no gradient comes",
    "pooler": "gives nothing that a next token follows from",
}
_LAYER = re.compile(r"\.layers\.(\d+)\.")
_HALVES = ("text_config", "llm_config")  # of a wrapped model's config.json; the second as older Nemotron H Omni has it
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
    if "block_sparse_moe" in words and any(word in _STACKED for word in words):
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


def why_no_lora(config: Json, name: str, once: bool = False) -> str:
    """Return why LoRA on a module of this name would not learn or ship in a model with this config.json; "" where it would.

    once: as holdfast knew it before it asked this of more than Mamba layers and Inkling, of a run that began then.
    """
    last, words = name.rpartition(".")[2], name.split(".")
    halves = [half for key in _HALVES if isinstance(half := config.get(key), dict)]
    kinds = [str(one.get("model_type")) for one in (config, *([] if once else halves))]
    for kind in kinds:
        if last in _READ_PAST.get(kind, ()) and not (once and kind not in (*_BY_PEFT, "mamba", "falcon_mamba")):
            return f"the code of {kind}, or fused code that it calls, would pass over LoRA there"
        if last in _LOST.get(kind, ()):
            return f"PEFT renames the tensors of {kind} as it loads them, and would not find LoRA there again"
        if last in _GROUPED.get(kind, ()) and not once:
            return f"a layer of {kind} that computes by groups, which LoRA does not"
    if not once and any(_sees_images(one, name) for one in (config, *halves)):
        return "in a layer that rows without images do not pass"
    return "" if once else next((why for word, why in _UNLEARNED.items() if word in words), "")


def _sees_images(text: Json, name: str) -> bool:
    """Return whether a module is of one of the layers that a config.json of Llama 3.2 Vision lists as those of its images."""
    listed, found = text.get("cross_attention_layers"), _LAYER.search(name)
    return isinstance(listed, list) and found is not None and int(found[1]) in listed


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
