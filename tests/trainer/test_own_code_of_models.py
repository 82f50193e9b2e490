"""What models' own code does with layers and their outputs beyond calling them: a run's start finds a form that it computes with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from support.architectures import ARCHITECTURES, GQA
from support.stand import Stand, model_folder

KINDS: dict[str, Any] = {
    "llama4": lambda: transformers.Llama4TextConfig(  # adds what experts give to a layer's output, in place
        **GQA, head_dim=8, intermediate_size_mlp=48, num_local_experts=4, num_experts_per_tok=1, attention_chunk_size=64
    ),
    "jamba": lambda: transformers.JambaConfig(  # multiplies with the weight of a layer beside the layer
        **GQA, attn_layer_period=2, attn_layer_offset=1, num_experts=2, use_mamba_kernels=False, mamba_d_state=8
    ),
}


def folder_of(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(ARCHITECTURES, kind, KINDS[kind])
    return model_folder(folder, kind, torch.bfloat16)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_outputs_of_layers_may_be_added_to_in_place(dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand = Stand(folder_of("llama4", tmp_path, monkeypatch), settings={"packing": False, "dtype": dtype})
    assert stand.task.prove()[0].get("frozen") is None
    assert stand.step(1) > 0


def test_weights_are_wide_where_a_models_own_code_takes_no_narrow_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of("jamba", tmp_path, monkeypatch)
    changes, why = Stand(folder, settings={"packing": False}).task.prove()
    assert changes == {"frozen": "fp32"} and "does not compute with weights in 16 bits" in why
    wide = Stand(folder, settings={"packing": False} | changes)
    assert "frozen" not in wide.task.prove()[0]
    assert wide.step(1) > 0


def test_a_failure_that_no_width_explains_is_told_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand = Stand(folder_of("jamba", tmp_path, monkeypatch), settings={"packing": False, "frozen": "fp32"})

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(stand.task.base, "forward", broken)
    with pytest.raises(RuntimeError, match="no such kernel"):
        stand.task.prove()
