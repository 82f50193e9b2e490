"""A tiny random model of any type that transformers lists, from its own config class: every size it has is made small."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PretrainedConfig
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

MOST = 60_000_000  # parameters; a model of more is not tiny
_WIDTH, _HEADS, _HEAD, _LAYERS = 64, 4, 16, 2
_DEPTHS = [
    "num_hidden_layers",
    "n_layer",
    "num_layers",
    "n_layers",
    "encoder_layers",
    "decoder_layers",
    "depth",
    "num_decoder_layers",
    "num_encoder_layers",
    "num_blocks",
    "encoder_num_layers",
]
_SIZES: tuple[tuple[int, str], ...] = (
    (
        _WIDTH,
        "hidden_size n_embd d_model embed_dim hidden_dim embedding_size dim word_embed_proj_dim projection_dim mm_hidden_size output_dim"
        " text_hidden_size out_hidden_size vision_hidden_size mlp_hidden_size attention_hidden_size input_hidden_size lru_width emb_dim"
        " hidden_size_per_layer_input cross_attention_hidden_size input_dim",
    ),
    (
        2 * _WIDTH,
        "intermediate_size ffn_dim d_ff n_inner dim_ff moe_intermediate_size shared_expert_intermediate_size encoder_ffn_dim"
        " decoder_ffn_dim ffn_hidden_size mlp_dim dense_intermediate_size expert_ffn_hidden_size shared_intermediate_size"
        " intermediate_size_mlp moe_shared_expert_intermediate_size ffn_intermediate_size moe_ffn_hidden_size adapter_hidden_size"
        " moe_shared_intermediate_size prefix_hidden_size d_inner",
    ),
    (
        _HEADS,
        "num_attention_heads n_head num_heads n_heads encoder_attention_heads decoder_attention_heads attention_heads index_n_heads"
        " swa_num_attention_heads mamba_n_heads linear_num_value_heads num_experts num_local_experts n_routed_experts moe_num_experts"
        " num_routed_experts moe_num_routed_experts num_qo_heads",
    ),
    (
        2,
        "num_key_value_heads num_kv_heads n_head_kv num_experts_per_tok moe_topk moe_k num_experts_per_token linear_num_key_heads"
        " swa_num_key_value_heads num_selected_experts moe_top_k top_k_experts moe_router_topk num_global_key_value_heads",
    ),
    (
        _HEAD,
        "head_dim qk_nope_head_dim qk_rope_head_dim v_head_dim kv_channels d_kv linear_key_head_dim linear_value_head_dim index_head_dim"
        " swa_head_dim global_head_dim attention_head_dim swa_v_head_dim head_size d_head v_head_size qk_head_dim rotary_dim",
    ),
    (2 * _HEAD, "q_lora_rank kv_lora_rank o_lora_rank"),
    (512, "max_position_embeddings n_positions max_seq_len n_ctx max_sequence_length"),
    (32, "image_size mamba_d_head"),
    (2, "n_group num_expert_group"),
    (1, "topk_group"),
    (8, "mamba_d_state state_size ssm_state_size patch_size"),
)
_SMALL = {name: size for size, names in _SIZES for name in names.split()} | dict.fromkeys(_DEPTHS, _LAYERS)
_TOKENS = {"pad_token_id": 3, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
_PLACES = [
    "image_token_id",
    "image_token_index",
    "video_token_id",
    "video_token_index",
    "audio_token_id",
    "audio_token_index",
    "vision_start_token_id",
    "vision_end_token_id",
    "boi_token_id",
    "boi_token_index",
    "eoi_token_id",
    "eoi_token_index",
    "boa_token_id",
    "eoa_token_id",
    "eoa_token_index",
    "vision_token_id",
    "audio_start_token_id",
    "audio_end_token_id",
    "image_start_token_id",
    "image_end_token_id",
]
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_MROPE = {**_ROPE, "mrope_section": [2, 3, 3]}
_FLORENCE = {"embed_dim": [32, 64], "num_heads": [2, 4], "num_groups": [2, 4], "patch_prenorm": [False, True]}
_INDEXER = {"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 16, "indexer_budget": 64, "indexer_compress_ratio": 4}
OWN: dict[str, dict[str, Any]] = {  # what a type needs besides
    "bert": {"is_decoder": True},  # as people who write text with one say
    "mamba2": {"num_heads": 4, "head_dim": 32, "n_groups": 1},
    "reformer": {"is_decoder": True, "axial_pos_embds_dim": (16, 48)},
    "nemotron": {"head_dim": 16, "num_key_value_heads": 4},
    "bamba": {"attn_layer_indices": [1]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16},
    "ministral": {"head_dim": 16},
    "glm5_next": {"num_key_value_heads": 4},
    "cohere_compass_text": {"rope_parameters": {"full_attention": _ROPE}},
    "cohere_compass": {"text_config": {"rope_parameters": {"full_attention": _ROPE}}},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0}},
    "deepseek_ocr2": {"text_config": {"num_experts_per_tok": 2, "mlp_layer_types": ["dense", "sparse"]}},
    "diffusion_gemma": {"text_config": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32}},
    "dots1": {"n_shared_experts": 1, "n_routed_experts": 4, "num_experts_per_tok": 2, "first_k_dense_replace": 1},
    "deepseek_v4": {"compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 8}},  # rows are short
    "deepseek_v3": {"first_k_dense_replace": 1},
    "deepseek_v32": {"mlp_layer_types": ["dense", "sparse"]},
    "glm_moe_dsa": {"mlp_layer_types": ["dense", "sparse"]},
    "dots3_note_text": {"swa_head_dim": 32, "head_dim": 32},
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_d_head": 16},
    "florence2": {"vision_config": {"depths": [1, 1], "patch_size": [7, 3], "patch_stride": [4, 2], "patch_padding": [3, 1], **_FLORENCE}},
    "hunyuan_vl": {"text_config": {"head_dim": 16, "rope_parameters": {**_ROPE, "mrope_section": [2, 2, 2, 2]}}},
    "janus": {"vq_config": {"num_embeddings": 256, "base_channels": 32, "image_token_embed_dim": 64}},
    "molmo2": {"adapter_config": {"vision_feature_layer": [-1, -2]}},
    "qwen4_exp_text": _INDEXER,
    "qwen4_exp": {"text_config": _INDEXER},
    "zamba": {"num_hidden_layers": 12, "layers_block_type": None, "attention_hidden_size": 128, "attention_head_dim": 32},
    "longcat_flash": {"head_dim": 16, "zero_expert_num": 2},  # of as many as real ones have, few tokens reach an expert that computes
    "qwen2_5_omni_thinker": {"vision_start_token_id": 40, "vision_end_token_id": 41},
    "qwen3_omni_moe_thinker": {"vision_start_token_id": 40, "vision_end_token_id": 41},
    "step3p7": {"text_config": {"sliding_window": 64}},
    "zamba2": {  # two layers that share their weights, as all real ones have
        "num_hidden_layers": 4,
        "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
        "hybrid_layer_ids": [1, 3],
        "mamba_headdim": 16,
        "mamba_expand": 2,
        "n_mamba_heads": 8,
        "attention_hidden_size": 128,
        "attention_head_dim": 32,
    },
    "glm4v_moe": {"text_config": {"rope_parameters": {**_ROPE, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 2]}}},
    "hrm_text": {"num_layers_per_stack": 2, "num_hidden_layers": 16},
    "granite4_vision": {"deepstack_layer_map": [[0, 0]], "spatial_target_layers": [0, 1], "downsample_rate": "1/2"},
    "blt": {
        "encoder_hash_byte_group_vocab": 500,
        "encoder_hash_byte_group_size": [3, 4],
        **{f"{part}_config": {"hidden_size_global": 64} for part in ("encoder", "decoder")},
    },
    "xlstm": {"hidden_size": 128, "embedding_dim": 128},
    "xmod": {"default_language": "en_XX"},
    "emu3": {"vocabulary_map": {"<image>": 20, "<|extra_200|>": 21}, "vq_config": {"codebook_size": 64, "base_channels": 32}},
    "dots3_note": {
        "text_config": {"swa_head_dim": 32, "head_dim": 32},
        "vision_config": {"adapter_in_dim": 64, "adapter_out_dim": 64, "mlp_layer_types": ["dense", "sparse"]},
        "audio_config": {"adapter_input_size": 64, "adapter_out_dim": 64, "downsample_hidden_size": 16, "conv_output_size": 256},
    },
    "chameleon": {"vocabulary_map": {"<image>": 20, "IMGIMGA": 21}},
    "ernie4_5_vl_moe": {"text_config": {"rope_parameters": {"rope_theta": 500000.0, "rope_type": "default", "mrope_section": [2, 2, 4]}}},
}


_BY_THREE = ("glm46v", "glm4v", "glm4v_moe", "glm_ocr", "glmga", "paddleocr_vl", "qwen2_5_omni_thinker", "qwen2_5_vl", "qwen2_vl")


def types() -> list[str]:
    """The values of model_type in transformers' causal and image-text-to-text lists, those that are no language models too."""
    return sorted({*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES})


def tiny_config(kind: str, vocabulary: int) -> PretrainedConfig:
    """The config of this type with small sizes. Raises whatever transformers raises where they do not go together."""
    usual = transformers.CONFIG_MAPPING[kind]()
    small = shrunk(usual.to_dict(), vocabulary)
    if kind in _BY_THREE:
        small["text_config"]["rope_parameters"] = _MROPE
    for at, name in enumerate(name for name in _PLACES if small.get(name) is not None):
        small[name] = 20 + at
    small = _deeper(small, OWN.get(kind, {}))
    return transformers.CONFIG_MAPPING[kind](**{name: value for name, value in small.items() if name != "model_type"})


def _deeper(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """`one` with the values of `other`; parts that end in _config are joined."""
    parts = {
        name: _deeper(one[name], value) for name, value in other.items() if name.endswith("_config") and isinstance(one.get(name), dict)
    }
    return one | other | parts


def shrunk(usual: dict[str, Any], vocabulary: int) -> dict[str, Any]:
    """The same config with small sizes, of parts of it, too."""
    found = dict(usual)
    layers = next((usual[name] for name in ("num_hidden_layers", "n_layer", "num_layers") if isinstance(usual.get(name), int)), None)
    few = _layers(usual)
    for name, value in usual.items():
        if not isinstance(name, str):
            continue
        if isinstance(value, dict) and name == "per_layer_config":
            found[name] = {at: shrunk(one, vocabulary) for at, one in value.items() if int(at) < few}
        elif isinstance(value, dict) and ("model_type" in value or name.endswith("_config")):
            found[name] = shrunk(value, vocabulary)
        elif name == "vocab_size" or (name.startswith("vocab_size_per") and value):
            found[name] = vocabulary
        elif name in _TOKENS and value is not None:
            found[name] = _TOKENS[name]
        elif isinstance(value, list) and layers and len(value) == layers and few < layers:
            found[name] = value[:few]
        elif isinstance(value, int) and not isinstance(value, bool) and name in _SMALL and value > 0:
            found[name] = min(value, few if name in _DEPTHS else _SMALL[name])
        elif name == "mrope_section":
            found[name] = [2, 3, 3]
        elif isinstance(value, dict):
            found[name] = shrunk(value, vocabulary)
    if found.get("kv_lora_rank") and "num_key_value_heads" in found:
        found["num_key_value_heads"] = found["num_attention_heads"]  # latent attention has as many of both
        found |= {"qk_head_dim": 2 * _HEAD} if "qk_head_dim" in found else {}
        found.pop("head_dim", None)
    for gone in ("architectures", "transformers_version", "dtype", "_name_or_path"):
        found.pop(gone, None)
    return found


def _layers(usual: dict[str, Any]) -> int:
    """How many layers: enough that each kind of layer is there."""
    kinds = usual.get("layer_types") or usual.get("layers_block_type") or usual.get("block_types")
    if isinstance(kinds, list) and kinds:
        return max(_LAYERS, *(kinds.index(kind) + 1 for kind in kinds))
    return _LAYERS


def make(kind: str, folder: Path, tokenizer: Path, vocabulary: int) -> Any:
    """Save such a model in bf16 with the tokenizer of another folder; the class it was made with."""
    torch.manual_seed(0)
    config = tiny_config(kind, vocabulary)
    causal, wrapped = kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, kind in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    auto = transformers.AutoModelForImageTextToText if wrapped and (not causal or hasattr(config, "text_config")) else None
    auto = auto or transformers.AutoModelForCausalLM
    with torch.device("meta"):
        size = sum(one.numel() for one in auto.from_config(config).parameters())
    if size > MOST:
        raise ValueError(f"{size:,} parameters are not tiny")
    model = auto.from_config(config).to(torch.bfloat16)
    for name, parameter in model.named_parameters():  # trained factors are not the zeros that some begin with
        torch.nn.init.normal_(parameter, std=0.05) if parameter.dim() > 1 or not (parameter.any() or "bias" in name) else None
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((tokenizer / name).read_bytes())
    return type(model)
