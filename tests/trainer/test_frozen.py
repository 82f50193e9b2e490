"""A model stored in 16 bits and computed in fp32 is computed in fp32, also where its output layer is tied to an embedding that scales."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from conftest import settings_with
from holdfast.config.config import Config
from holdfast.trainer.model import load as models
from holdfast.trainer.model.frozen.halves import keep_narrow
from holdfast.trainer.parts.threads import at_the_same_time
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


def test_threads_that_look_into_a_scaled_table_at_the_same_time_get_their_own_rows() -> None:
    """As parts of a step on a CPU do: the second one asks while the first is inside of the module's own code."""
    inside = Barrier(2)

    class Scaled(nn.Embedding):
        def forward(self, input_ids: Tensor) -> Tensor:
            inside.wait(60)
            rows = super().forward(input_ids)
            inside.wait(60)
            return rows * 4.0

    model = nn.ModuleDict({"table": Scaled(3, 2, padding_idx=0, dtype=torch.bfloat16)})
    assert keep_narrow(model, torch.bfloat16) == 0
    table: Any = model["table"]
    kept, wanted = table.weight, table.weight.detach().float() * 4.0
    asked = [torch.tensor([[1, 2, 0]]), torch.tensor([[2, 0, 1]])]
    found = at_the_same_time([partial(table, ids) for ids in asked])
    assert all(torch.equal(rows, wanted[ids]) for rows, ids in zip(found, asked, strict=True))
    assert table.weight is kept and table.padding_idx == 0
