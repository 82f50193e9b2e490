"""A model stored in 16 bits and computed in fp32 is computed in fp32, also where its output layer is tied to an embedding that scales."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from conftest import settings_with
from holdfast.config.config import Config
from holdfast.trainer.model import load as models
from support.architectures import ARCHITECTURES

SETTINGS = settings_with()
IDS = torch.arange(3, 35)[None]


def stored(folder: Path, name: str) -> Path:
    """A random model of this architecture, saved in bf16."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(ARCHITECTURES[name]())
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3) if parameter.dim() > 1 else None
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", ["gemma3", "gemma2", "cohere"])
def test_the_stream_is_fp32_and_gives_what_wide_weights_give(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = stored(tmp_path, name)
    monkeypatch.setattr(models, "read_model", lambda _: SimpleNamespace(folder=folder, stored="BF16", config={}, shapes={}))
    model: Any
    model, _ = models.load_base(Config.model_validate({"model": str(folder), "data": {"files": "x"}}), SETTINGS, torch.device("cpu"))
    kinds: set[torch.dtype] = set()
    for module in model.modules():
        module.register_forward_hook(lambda _module, _given, out: kinds.add(out.dtype) if isinstance(out, torch.Tensor) else None)
    ours = model(input_ids=IDS, use_cache=False).logits
    assert kinds == {torch.float32}
    assert {p.dtype for p in model.parameters() if p.dim() > 1} == {torch.bfloat16}, "in memory all matrices stay halves"
    wide = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation=model.config._attn_implementation
    )
    assert torch.equal(ours, wide(input_ids=IDS, use_cache=False).logits)
