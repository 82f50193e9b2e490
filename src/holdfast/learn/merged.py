"""Merge experts into one adapter: the mean of what each adds, exact, by setting their factors side by side. No torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from holdfast.base.files import Json, read_json, write_json
from holdfast.base_model.server_keys import VLLM_RANKS

_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_OWN = (
    *("use_dora", "rank_pattern", "alpha_pattern", "modules_to_save", "trainable_token_indices", "lora_bias", "layer_replication"),
    "target_parameters",  # whose factors are those of many experts in one tensor
)


def merge_experts(adapters: Sequence[Path], out: Path) -> str:
    """Write the mean of LoRA adapters as an adapter of the sum of their ranks; return why they have none, "" where it is written."""
    configs: list[Json] = [read_json(folder / _CONFIG) or {} for folder in adapters]
    first, count = configs[0], len(adapters)
    if any(one.get("peft_type") != "LORA" for one in configs):
        return "only LoRA adapters are merged"
    if named := [name for name in _OWN if any(one.get(name) for one in configs)]:
        return f"adapters with {', '.join(named)} are not merged"
    if any(one.get("bias", "none") != "none" for one in configs):
        return "adapters that train biases are not merged"
    if (rank := first["r"] * count) > VLLM_RANKS[-1]:
        return f"its rank would be {rank}, more than the {VLLM_RANKS[-1]} that vLLM takes"
    try:
        tensors = [load_file(folder / _WEIGHTS) for folder in adapters]
    except (TypeError, KeyError) as error:  # bfloat16, which numpy does not know
        return f"their weights are of a type that is not merged ({error})"
    if any(one.keys() != tensors[0].keys() or not all(".lora_A." in name or ".lora_B." in name for name in one) for one in tensors):
        return "their weights are not those of the same layers"
    out.mkdir(parents=True, exist_ok=True)
    save_file({name: _side_by_side(name, [one[name] for one in tensors]) for name in tensors[0]}, out / _WEIGHTS, {"format": "pt"})
    wider = math.sqrt(count) if first.get("use_rslora") else count  # so that the scale of the factors stays as it was
    write_json(out / _CONFIG, first | {"r": rank, "lora_alpha": first["lora_alpha"] * wider})
    return ""


def _side_by_side(name: str, parts: list[Any]) -> Any:
    """Return A factors below each other; B factors beside each other, each divided by their number."""
    if ".lora_A." in name:
        return np.concatenate(parts, axis=0)
    return np.ascontiguousarray(np.concatenate([part / np.asarray(len(parts), part.dtype) for part in parts], axis=1))
