"""Which tensors of a LoRA adapter vLLM and SGLang find no module for, by their names. Pure.

Read in the packages vLLM 0.33.0 and SGLang 0.5.23; each rule names where:

* vLLM takes `base_model.model.` off and puts the checkpoint's prefixes into its own (`hf_to_vllm_mapper` of each model's class); what no
  module has is left out without an error (lora/model_manager.py, activate_adapter). In a wrapped model it knows the language half as
  `model.language_model.` (vllm-project/vllm#39369, #48019); the older `model.` too where a class maps that (OLDER_NAMES_TOO), and
  `model.text_model.` where its own modules are named so (idefics3.py). A class it has not, it runs by transformers, with the names there.
  Its Molmo 2 has `model.layers.` of layers that a file has as one (molmo2.py, packed_modules_mapping), and no adapter of transformers'
  class has these.
* Where a base has Mistral's own files beside those of transformers, vLLM takes them, unless told HF_FILES (transformers_utils/config.py):
  conversations are then written by mistral-common and not by the chat template, and vLLM of before March 2026 found no name of an adapter
  in a wrapped one (vllm-project/vllm#34591, mended by #36963).
* Gemma 4's layers have two names in vLLM (`layers`, `self_decoder.decoder_layers`): of before June 2026 it cleared an adapter by the
  second as soon as it was set by the first (vllm-project/vllm#39815, #41754, mended by #44413).
* vLLM adapts towers only with --enable-tower-connector-lora (vllm-project/vllm#23796, #35147). SGLang goes by `layers.N.` and the module's
  last name alone (srt/lora/lora.py, mem_pool.py), so it finds every language half, and takes a tower's layers for those of the language
  half; what has no such number it leaves out (sgl-project/sglang#28784).
* Stacks of experts, as PEFT's target_parameters name them: vLLM reads them for classes with `is_3d_moe_weight` alone, and there both of
  them (lora/model_manager.py, _stack_moe_lora_weights); elsewhere it ends with an AssertionError (lora/layers/fused_moe.py, set_lora),
  older ones left them out (vllm-project/vllm#41384). SGLang skips them with a warning (sgl-project/sglang#25528).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import NamedTuple

from holdfast.base.files import Json
from holdfast.base_model.parts import part_of
from holdfast.base_model.types import WRAPPED

_PREFIX = "base_model.model."
_OLDER_NAMES_TOO = ("qwen2_vl", "qwen2_5_vl", "exaone4_5", "gemma4", "gemma4_unified", "mistral3", "ernie4_5_vl_moe")
_STACKS = ("qwen3_5_moe", "qwen3_vl_moe", "qwen3_omni_moe", "qwen3_omni_moe_thinker", "gpt_oss", "interns1_pro")
_OWN_NAMES = ("deepseek_ocr2", "unlimited_ocr", "kosmos-2.5", "mistral_large4")  # no `language_model`; vLLM runs them by transformers
VLLM_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # that --max-lora-rank takes
TOWERS = (
    "vLLM ignores an adapter's part in a vision or audio tower, without an error, unless started with --enable-tower-connector-lora;"
    " SGLang ignores it, or takes a tower's layers for those of the language half"
)
EXPERTS = (
    "vLLM (0.33) and SGLang (0.5.23) do not serve an adapter's part in this model's stacked experts (PEFT's target_parameters):"
    " they refuse the adapter or, as older ones, leave that part out without an error"
)
STACKS = (
    "SGLang (0.5.23) and older vLLM leave out an adapter's part in stacked experts (PEFT's target_parameters), without an error;"
    " vLLM 0.33 serves it"
)
RSLORA = (
    "SGLang (0.5.23), llama.cpp's convert_lora_to_gguf.py and Ollama do not read use_rslora, and answer with 1/sqrt(r) of such an"
    " adapter's strength, without an error"
)
HALF = (
    "AutoModelForCausalLM loads this model's language half, where its weights have other names: an adapter that PeftModel puts on it"
    f" changes nothing, with a warning of PEFT alone; AutoPeftModelForCausalLM and {WRAPPED} load all of it"
)
GEMMA4 = "vLLM of before June 2026 answers with any adapter on Gemma 4 as the base does, without an error: take a newer one"
HF_FILES = "--tokenizer-mode hf --config-format hf --load-format hf"
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
    both = len({".base_layer." in name for name in stacked}) == 2  # vLLM reads gate_up_proj and down_proj together
    whole += [
        (of_stacks(config) if both else EXPERTS, stacked),
        (LANGUAGE.format(name=lost[0].partition(".lora_")[0]) if lost else "", lost),
    ]
    return [IgnoredKeys(why, len(some) == len(names)) for why, some in whole if some]


def has_mistrals_files(config: Json) -> bool:
    """True if models of this type are published with Mistral's own files beside those of transformers."""
    return str(config.get("model_type")).startswith(("mistral", "ministral", "mixtral"))


def older_servers(config: Json) -> list[str]:
    """List what older versions of a server do with any adapter on a base of this type, in words."""
    return [GEMMA4] if str(config.get("model_type")).startswith("gemma4") else []


def of_stacks(config: Json) -> str:
    """Return the sentence about an adapter's part in both stacks of a model's experts."""
    return STACKS if config.get("model_type") in _STACKS else EXPERTS


def serves_wrapped(config: Json) -> bool:
    """True if servers run the class of text and images: they choose by the name in config.json, not as training did."""
    named = config.get("architectures")
    own = str(named[0]) if isinstance(named, list) and named else ""
    return isinstance(config.get("text_config"), dict) and not own.endswith("ForCausalLM")


def _finds(name: str, config: Json) -> bool:
    kind = config.get("model_type")
    if kind == "molmo2":
        return name.startswith("lm_head.")
    if not serves_wrapped(config) or name.startswith(("model.language_model.", "language_model.", "lm_head.", "model.text_model.")):
        return True
    return kind in _OWN_NAMES or (kind in _OLDER_NAMES_TOO and name.startswith("model."))


def _of_one_expert(name: str) -> bool:
    """True if a tensor is of an expert by its number, as in `experts.7.down_proj`."""
    words = name.split(".")
    return any(word.endswith("experts") and later.isdigit() for word, later in itertools.pairwise(words))
