"""In a mixture of experts what chooses experts stays as it was, unless it is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from holdfast.base_model.folder import read_model
from holdfast.base_model.parts import by_part
from holdfast.planning.memory.trained_size import trained_by_part
from support.architectures import GQA
from support.stand import Stand, model_folder

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 8}
KINDS = {
    "qwen3_moe": lambda: transformers.Qwen3MoeConfig(**GQA, **EXPERTS),
    "mixtral": lambda: transformers.MixtralConfig(**GQA, num_local_experts=4, num_experts_per_tok=2),
    "granitemoe": lambda: transformers.GraniteMoeConfig(**GQA, num_local_experts=4, num_experts_per_tok=2),
    "gpt_oss": lambda: transformers.GptOssConfig(**GQA, head_dim=8, num_local_experts=4, num_experts_per_tok=2),
}
ROUTED: list[Any] = ["all-linear", r".*\.(q_proj|mlp\.g\w*|mlp\.r\w*)", ["q_proj"]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {kind: model_folder(folder / kind, made, torch.bfloat16) for kind, made in KINDS.items()}


def parts_of(stand: Stand) -> dict[str, int]:
    return by_part({name: tensor.numel() for name, tensor in stand.task.artifact.items()})


@pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys:RuntimeWarning")  # PEFT's, and false: they are used
@pytest.mark.parametrize("targets", ROUTED, ids=["all-linear", "pattern", "list"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_router_is_not_trained_unasked(models: dict[str, Path], kind: str, targets: Any) -> None:
    stand = Stand(models[kind], settings={"packing": False}, adapter={"targets": targets})
    found = parts_of(stand)
    assert "attention" in found and "router" not in found, sorted(stand.task.artifact)
    assert stand.step(1) > 0
    assert trained_by_part(stand.config, read_model(str(models[kind]))) == found


def test_the_router_is_trained_where_it_is_named(models: dict[str, Path]) -> None:
    stand = Stand(models["qwen3_moe"], settings={"packing": False}, adapter={"targets": ["q_proj", "gate"]})
    assert "router" in parts_of(stand)
