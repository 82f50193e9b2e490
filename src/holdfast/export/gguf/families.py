"""What llama.cpp wants to know of each family of models that is converted here, and how it wants their tensors.

After llama.cpp's own conversion (its LlamaModel, Qwen2Model, Qwen3Model, Qwen3MoeModel, OlmoeModel, Gemma..Gemma3Model): names come
from the gguf package, the rest is metadata, the order of rotary halves in Llama's queries and keys, and Gemma's norms, which are stored
without their 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from holdfast.base.errors import BLOCKED, Stop
from holdfast.base.files import Json
from holdfast.base_model.folder import ModelFacts
from holdfast.export.tensors import Floats

ARCHITECTURES = {  # of transformers, and llama.cpp's name
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "MixtralForCausalLM": "llama",
    "Qwen3MoeForCausalLM": "qwen3moe",
    "OlmoeForCausalLM": "olmoe",
    "GemmaForCausalLM": "gemma",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
}
_GEMMA3_PATTERN = 6  # each sixth layer sees everything: llama.cpp has it built in
_YARN = {"beta_fast": 32, "beta_slow": 1, "truncate": True} | dict.fromkeys(("attention_factor", "mscale", "mscale_all_dim"))
_ACTIVATIONS = dict.fromkeys(("llama", "qwen2", "qwen3", "qwen3moe", "olmoe"), "silu") | dict.fromkeys(
    ("gemma", "gemma2", "gemma3"), "gelu"
)
_SHARES_SUM_TO_1 = {"qwen3moe": True, "olmoe": False}  # of the experts that are chosen, as llama.cpp has it built in


@dataclass(frozen=True)
class Family:
    """A model as llama.cpp sees it. heads, key_heads: of queries and keys; head: width of one."""

    arch: str
    config: Json
    layers: int
    heads: int
    key_heads: int
    head: int

    def turned(self, name: str, values: Any) -> Any:
        """Rearrange a tensor as llama.cpp stores it. values: rows of all of it."""
        if self.arch == "llama" and name.endswith(("q_proj.weight", "q_proj.bias")):
            return _halves_to_pairs(values, self.heads)
        if self.arch == "llama" and name.endswith(("k_proj.weight", "k_proj.bias")):
            return _halves_to_pairs(values, self.key_heads)
        if self.arch.startswith("gemma") and name.endswith("norm.weight"):
            return values + np.float32(1)
        return values


def _halves_to_pairs(values: Any, heads: int) -> Any:
    """Place rotary dimensions i and i + half next to each other, head by head."""
    shape = values.shape
    return values.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def family_of(facts: ModelFacts) -> Family:
    """Return the family of a model. Raises Stop(1) for an architecture, or a setting of one, that is not converted here."""
    config = facts.config
    name = (config.get("architectures") or ["?"])[0]
    if name not in ARCHITECTURES:
        known = ", ".join(sorted({one.removesuffix("ForCausalLM") for one in ARCHITECTURES}))
        text = f"{name} has no converter to GGUF here (there is one for {known})"
        raise Stop(BLOCKED, text, "use llama.cpp's own: --to gguf --llama-cpp DIR, a checkout of it; or export it --to merged")
    arch = ARCHITECTURES[name]
    heads = int(config["num_attention_heads"])
    head = int(config.get("head_dim") or config["hidden_size"] // heads)
    family = Family(arch, config, int(config["num_hidden_layers"]), heads, int(config.get("num_key_value_heads") or heads), head)
    _refuse_settings(family)
    return family


def _refuse_settings(family: Family) -> None:
    """Raise Stop(1) for what llama.cpp would compute otherwise, and does not say so."""
    config, wrong = family.config, []
    activation = str(config.get("hidden_activation") or config.get("hidden_act") or "silu")
    if not activation.startswith(_ACTIVATIONS[family.arch]):
        wrong.append(f"activation {activation}")
    if family.arch == "gemma2" and config.get("query_pre_attn_scalar") not in (None, family.head):
        wrong.append(f"query_pre_attn_scalar {config['query_pre_attn_scalar']}, heads of {family.head}")
    if family.arch == "gemma3":
        types = config.get("layer_types") or []
        if any((kind == "full_attention") != ((at + 1) % _GEMMA3_PATTERN == 0) for at, kind in enumerate(types)):
            wrong.append("another pattern of sliding layers than each sixth full")
    if (sums := _SHARES_SUM_TO_1.get(family.arch)) is not None and bool(config.get("norm_topk_prob")) != sums:
        wrong.append(f"norm_topk_prob {bool(config.get('norm_topk_prob'))}")
    if config.get("mlp_only_layers") or (config.get("decoder_sparse_step") or 1) != 1:
        wrong.append("layers without experts among those with")
    if config.get("clip_qkv"):
        wrong.append(f"clip_qkv {config['clip_qkv']}")
    rope = rope_of(config)
    kind = rope["rope_type"]
    if kind == "yarn":
        wrong += [f"YaRN with {name} {rope[name]}" for name, usual in _YARN.items() if rope.get(name) not in (None, usual)]
    if kind not in ("default", "linear", "llama3", "yarn"):
        wrong.append(f"RoPE of type {kind}")
    if wrong:
        hint = "use llama.cpp's own converter, --to gguf --llama-cpp DIR, if it knows better; or export it --to merged"
        raise Stop(BLOCKED, f"this {family.arch} model has what is not converted here: {', '.join(wrong)}", hint)


def rope_of(config: Json) -> Json:
    """Return the rotary settings, wherever this or an older transformers writes them; of Gemma 3 those of full attention."""
    written: Json = config.get("rope_parameters") or config.get("rope_scaling") or {}
    found: Json = written.get("full_attention") or written
    kind = found.get("rope_type") or found.get("type") or "default"
    return {"rope_theta": config.get("rope_theta", 10000.0)} | found | {"rope_type": kind}


def context_of(family: Family) -> int:
    """Return the number of tokens of context: the window where llama.cpp has none for an architecture, and would differ beyond it."""
    config = family.config
    longest = int(config.get("max_position_embeddings") or 2048)
    window = config.get("sliding_window")
    used = family.arch in ("llama", "qwen2", "qwen3", "qwen3moe") and config.get("use_sliding_window", family.arch == "llama")
    return min(longest, int(window)) if used and window else longest


def metadata(family: Family, writer: Any) -> None:
    """Tell a GGUFWriter what the model is."""
    config = family.config
    writer.add_context_length(context_of(family))
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(family.layers)
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(family.heads)
    writer.add_head_count_kv(family.key_heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_key_length(family.head)
    writer.add_value_length(family.head)
    writer.add_vocab_size(config["vocab_size"])
    if experts := config.get("num_experts") or config.get("num_local_experts"):
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config["num_experts_per_tok"])
        if config.get("moe_intermediate_size"):
            writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if not family.arch.startswith("gemma"):
        writer.add_rope_dimension_count(family.head)
    _rope(family, writer)
    if family.arch in ("gemma2", "gemma3"):
        if config.get("sliding_window"):
            writer.add_sliding_window(config["sliding_window"])
        if config.get("attn_logit_softcapping") and family.arch == "gemma2":
            writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        if config.get("final_logit_softcapping"):
            writer.add_final_logit_softcapping(config["final_logit_softcapping"])


def _rope(family: Family, writer: Any) -> None:
    import gguf

    rope = rope_of(family.config)
    writer.add_rope_freq_base(rope["rope_theta"])
    if family.arch == "gemma3":
        local = (family.config.get("rope_parameters") or {}).get("sliding_attention", {}).get("rope_theta")
        writer.add_rope_freq_base_swa(local or family.config.get("rope_local_base_freq", 10000.0))
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    elif rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])


def rope_factors(family: Family) -> Floats | None:
    """Compute the divisor of each frequency for Llama 3's scaling, as transformers does; None without that scaling."""
    rope = rope_of(family.config)
    if rope["rope_type"] != "llama3":
        return None
    frequencies = rope["rope_theta"] ** -(np.arange(0, family.head, 2) / family.head)
    waves = 2 * math.pi / frequencies
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    longest = rope["original_max_position_embeddings"]
    smooth = (longest / waves - low) / (high - low)
    between = 1 / ((1 - smooth) / factor + smooth)
    found = np.where(waves < longest / high, 1.0, np.where(waves > longest / low, factor, between))
    return found.astype(np.float32)
