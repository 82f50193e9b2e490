"""Which tensors of a LoRA adapter vLLM and SGLang find no module for, by their names. Pure.

Both load such an adapter and answer as the base model does, without an error. Each rule names where it was read:

* vLLM takes `base_model.model.` off and puts the checkpoint's prefixes into its own (`hf_to_vllm_mapper` of each model's class): the
  language half of a wrapped model has to begin with `model.language_model.` (vllm-project/vllm#39369, #48019); Qwen2-VL and Qwen2.5-VL
  know the older `model.`, too (vllm/model_executor/models/qwen2_vl.py).
* vLLM adapts towers only with --enable-tower-connector-lora (vllm-project/vllm#23796, #35147), SGLang never (sgl-project/sglang#28784).
* Of experts, both look for a tensor of each expert; those of PEFT's target_parameters are passed over (vllm-project/vllm#41384,
  sgl-project/sglang#25528).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import NamedTuple

from holdfast.base.files import Json
from holdfast.base_model.parts import part_of
from holdfast.base_model.types import WRAPPED

_PREFIX = "base_model.model."
_OLDER_NAMES_TOO = ("qwen2_vl", "qwen2_5_vl")
TOWERS = (
    "vLLM ignores an adapter's part in a vision or audio tower, without an error, unless started with --enable-tower-connector-lora;"
    " SGLang ignores it always"
)
EXPERTS = "vLLM and SGLang ignore an adapter's part in stacked experts (PEFT's target_parameters), without an error"
HALF = (
    "AutoModelForCausalLM loads this model's language half, where its weights have other names: an adapter that PeftModel puts on it"
    f" changes nothing, with a warning of PEFT alone; AutoPeftModelForCausalLM and {WRAPPED} load all of it"
)
LANGUAGE = "vLLM finds no module for an adapter's names of the language half ({name}) in this wrapped model, and answers as the base"


class IgnoredKeys(NamedTuple):
    """A sentence, and whether all of the adapter would be ignored."""

    why: str
    all: bool


def ignored(config: Json, keys: Iterable[str]) -> list[IgnoredKeys]:
    """List the parts of an adapter with these tensors that a server of the base with this config.json would ignore in silence."""
    names = [key.removeprefix(_PREFIX) for key in keys]
    wrapped = serves_wrapped(config)
    parts = [part_of(name, wrapped) for name in names]
    lost = [name for name, part in zip(names, parts, strict=True) if part not in ("towers", "experts") and not _finds(name, config)]
    whole = [(TOWERS, [name for name, part in zip(names, parts, strict=True) if part == "towers"])]
    stacked = [name for name, part in zip(names, parts, strict=True) if part == "experts" and not _of_one_expert(name)]
    whole += [(EXPERTS, stacked), (LANGUAGE.format(name=lost[0].partition(".lora_")[0]) if lost else "", lost)]
    return [IgnoredKeys(why, len(some) == len(names)) for why, some in whole if some]


def serves_wrapped(config: Json) -> bool:
    """True if servers run the class of text and images: they choose by the name in config.json, not as training did."""
    named = config.get("architectures")
    own = str(named[0]) if isinstance(named, list) and named else ""
    return isinstance(config.get("text_config"), dict) and not own.endswith("ForCausalLM")


def _finds(name: str, config: Json) -> bool:
    if not serves_wrapped(config) or name.startswith(("model.language_model.", "language_model.", "lm_head.")):
        return True
    return config.get("model_type") in _OLDER_NAMES_TOO and name.startswith("model.")


def _of_one_expert(name: str) -> bool:
    """True if a tensor is of an expert by its number, as in `experts.7.down_proj`."""
    words = name.split(".")
    return any(word.endswith("experts") and later.isdigit() for word, later in itertools.pairwise(words))
