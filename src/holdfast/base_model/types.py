"""Which models the installed transformers has code for, and the class one is loaded through. Reads its source; imports nothing of it."""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from pathlib import Path

from holdfast.base.files import Json

CAUSAL, WRAPPED = "AutoModelForCausalLM", "AutoModelForImageTextToText"
_TOWERS = (
    *("vision", "visual", "audio", "multi_modal", "multimodal", "image", "video", "speech", "perceiver", "projector", "vqmodel"),
    "resampler",  # ERNIE 4.5 VL
    *("sam_model", "qwen2_model", "patch_merge"),  # as files of DeepSeek-OCR, Mistral Large 4 and MiniMax M3 name them
    *("mlp1", "sound", "connector", "aligner", "generation_head"),  # Nemotron H Omni and InternVL; Idefics; Janus and DeepSeek-VL
)

_TOPS = ("blocks", "merger", "deepstack_merger_list", "patch_embed", "pos_embed")  # of a tower that files of Cosmos 3 Omni do not name


@cache
def _listed(name: str, source: str = "models/auto/modeling_auto.py") -> dict[str, str] | None:
    """Return pairs of names, as class names by values of `model_type`; None where transformers is not installed or has them elsewhere."""
    found = importlib.util.find_spec("transformers")
    file = Path(found.origin).parent / source if found and found.origin else None
    try:
        text = file.read_text(encoding="utf-8") if file else ""
    except OSError:
        return None
    listed = re.search(rf"^{name}\b.*?^[)}}]", text, re.MULTILINE | re.DOTALL)
    return dict(re.findall(r'"([^"]+)"[,:]\s*"([^"]+)"', listed.group())) or None if listed else None


def causal_types() -> frozenset[str] | None:
    """Return the values of `model_type` in config.json that are causal language models; None where that cannot be told."""
    listed = _listed("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES")
    return None if listed is None else frozenset(listed)


def loads_as(config: Json) -> str | None:
    """Return the transformers class that users and training load a model with this config.json through; None where there is none.

    A model of text and images, or text and sound, is loaded as what its config names, so that what is trained has the names found there.
    """
    kind, causal = config.get("model_type"), _listed("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES")
    wrapped = _listed("MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES") or {}
    if causal is None:
        return CAUSAL
    if not isinstance(kind, str) or config.get("is_encoder_decoder") is True:
        return CAUSAL if kind in causal else None
    named = config.get("architectures")
    own = named[0] if isinstance(named, list) and named else None
    if kind in wrapped and "text_config" in config and (kind not in causal or own == wrapped[kind]):
        return WRAPPED
    if kind not in causal and own == wrapped.get(kind) and str(own).endswith("ForCausalLM"):  # Mistral 4, whose text half is a model, too
        return WRAPPED
    return CAUSAL if kind in causal else None


def names_encoder_decoder(config: Json) -> bool:
    """Return whether the class that config.json names reads with an encoder, of which a causal language model has the decoder alone."""
    named, kind = config.get("architectures"), config.get("model_type")
    if not isinstance(named, list) or not named or not isinstance(kind, str) or "text_config" in config:
        return False
    both, causal = (_listed(f"MODEL_FOR_{name}_MAPPING_NAMES") or {} for name in ("SEQ_TO_SEQ_CAUSAL_LM", "CAUSAL_LM"))
    return named[0] in both.values() and named[0] != causal.get(kind)


def _half_and_whole(config: Json) -> tuple[object, object]:
    """Return the classes that AutoModelForCausalLM and AutoModelForImageTextToText make of a model; None for one that makes none."""
    kind = str(config.get("model_type"))
    causal, wrapped = (_listed(f"MODEL_FOR_{name}_MAPPING_NAMES") or {} for name in ("CAUSAL_LM", "IMAGE_TEXT_TO_TEXT"))
    return causal.get(kind), wrapped.get(kind)


def has_text_half(config: Json) -> bool:
    """True if AutoModelForCausalLM makes another class of it than training has: the language half, whose weights have other names there."""
    half, whole = _half_and_whole(config)
    return loads_as(config) == WRAPPED and half is not None and half != whole


def for_auto_peft(about: Json, config: Json) -> Json:
    """Return an adapter_config.json from which PEFT's AutoPeftModel classes load the class training has; config: the model's config.json.

    Beside a task_type they load AutoModelForCausalLM, where a language half has other names, or refuse the model.
    """
    half, whole = _half_and_whole(config)
    prompt = "num_virtual_tokens" in about  # of which PEFT's class without a task computes nothing
    if about.get("task_type") != "CAUSAL_LM" or prompt or loads_as(config) != WRAPPED or half == whole:
        return about
    return about | {"task_type": None, "auto_mapping": {"base_model_class": WRAPPED, "parent_library": "transformers"}}


def adapts_stacks(model_type: object) -> bool:
    """True if PEFT puts LoRA on stacks of experts where layers of their older names are asked for, and on no other layer of these names."""
    listed = {"mixtral": "mixtral"} | (_listed("_MODEL_TO_CONVERSION_PATTERN", "conversion_mapping.py") or {})  # PEFT adds that one
    return listed.get(str(model_type)) in ("mixtral", "qwen2_moe")


@cache
def multiplies_stacks(model_type: object) -> bool:
    """True if transformers' code of a type multiplies stacks of experts by its grouped product, which can be given them in fewer bits."""
    special = _listed("SPECIAL_MODEL_TYPE_TO_MODULE_NAME", "models/auto/auto_mappings.py") or {}
    name = special.get(str(model_type), str(model_type)).replace("-", "_")
    found = importlib.util.find_spec("transformers")
    try:
        file = Path(found.origin).parent / "models" / name / f"modeling_{name}.py" if found and found.origin else None
        return file is not None and "@use_experts_implementation" in file.read_text(encoding="utf-8")
    except (OSError, ValueError):  # no such file, or no name of one
        return False


def has_towers(config: Json) -> bool:
    """True if a model with this config.json embeds images or sound, besides text: GIT and Phi-4 multimodal have no `text_config`."""
    return any(isinstance(config.get(f"{part}_config"), dict) for part in ("text", "vision", "audio"))


def is_tower(name: str) -> bool:
    """True if a module or weight of a wrapped model, by its name, belongs to the tower that embeds images or sound."""
    words = name.lower().split(".")
    return words[0] in _TOPS or any(word in part for part in words for word in _TOWERS)
