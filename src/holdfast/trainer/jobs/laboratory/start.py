"""What a run starts with: attention, number formats, padding, libraries of products, what learns. Measured on the built model."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import nn

from holdfast.base.files import Json
from holdfast.trainer.jobs.laboratory.rows import label_facts
from holdfast.trainer.training_state import TrainingState

KINDS = ("attention", "mlp", "experts", "router", "embeddings", "towers")
_PARTS = (  # the first whose word is in a module's name
    ("towers", ("vision", "audio", "visual", "image_")),
    ("experts", ("experts",)),
    ("router", ("router", "mlp.gate.", "block_sparse_moe.gate")),
    ("embeddings", ("embed", "wte", "wpe", "lm_head", "embed_out", "shared.")),
    ("attention", ("attn", "attention", "mixer", "q_proj", "k_proj", "v_proj", "o_proj")),
    ("mlp", ("mlp", "feed_forward", "ffn", "fc1", "fc2", "gate_proj", "up_proj", "down_proj")),
)


def start_facts(training: TrainingState, request: Json, folder: Path) -> Json:
    """`start` as `holdfast check` prints it, and beside it what the experiments need to know of the rows."""
    task = training.task
    trained = {id(tensor): name for name, tensor in training.artifact.tensors.items()}
    frozen = Counter(str(p.dtype).removeprefix("torch.") for p in task.model.parameters() if id(p) not in trained and not p.requires_grad)
    return {
        "start": {
            "attention": getattr(task, "attends", None),
            "dtype": {
                "frozen": frozen.most_common(1)[0][0] if frozen else None,
                "trained": _dtype(training),
                "computed": training.settings.dtype,
            },
            "pad": getattr(getattr(task, "tokens", None), "pad", None),
            "cudnn_attention": _cudnn() if training.device.type == "cuda" else None,
            "blas": _blas(training.device),
            "learns": learns(task.model, set(training.optimizer.parameters)),
        },
        "facts": task.facts,
        "remarks": [kind for kind, _ in task.remarks(fresh=True)],
        "settings": training.settings.as_json(),
        "steps": training.job.settings(1).steps,
        "trainable": sum(p.numel() for p in training.optimizer.parameters.values()),
        "rows": label_facts(training),
    }


def _dtype(training: TrainingState) -> str | None:
    kinds = {str(p.dtype).removeprefix("torch.") for p in training.optimizer.parameters.values()}
    return " and ".join(sorted(kinds)) or None


def _blas(device: torch.device) -> str:
    """The library that multiplies matrices here."""
    if device.type == "cuda":
        kind: Any = torch.backends.cuda.preferred_blas_library()
        return str(kind).rpartition(".")[2].lower()
    return "mkl" if torch.backends.mkl.is_available() else "openblas or eigen"  # type: ignore[no-untyped-call]


def _cudnn() -> bool:
    return bool(torch.backends.cuda.cudnn_sdp_enabled())  # type: ignore[no-untyped-call]


def learns(model: nn.Module, trained: set[str]) -> dict[str, Json]:
    """Of each kind of module: parameters that learn, and the share of the kind's matrices that have some.

    trained: names of what the optimizer moves. An adapter's parameter counts for the module it stands in.
    """
    found: dict[str, Json] = {kind: {"parameters": 0, "share_of_kind": None} for kind in KINDS}
    modules: dict[str, Counter[bool]] = {kind: Counter() for kind in KINDS}
    for name, module in model.named_modules():
        own = [p for part, p in module.named_parameters() if ".base_layer." not in f".{part}" and p.requires_grad]
        is_matrix = hasattr(module, "base_layer") or (isinstance(module, nn.Linear | nn.Embedding) and not _inside_adapter(name))
        kind = kind_of(name)
        if kind is None or not is_matrix or name.endswith("base_layer"):
            continue
        modules[kind][bool(own)] += 1
        found[kind]["parameters"] += sum(p.numel() for p in own)
    for kind, seen in modules.items():
        if seen.total():
            found[kind]["share_of_kind"] = round(seen[True] / seen.total(), 4)
    return found


def kind_of(name: str) -> str | None:
    """The kind of a module by its name; None for what is none of them."""
    return next((kind for kind, words in _PARTS if any(word in f"{name}." for word in words)), None)


def _inside_adapter(name: str) -> bool:
    return any(part.startswith("lora_") or part in ("ia3_l", "prompt_encoder") for part in name.split("."))
