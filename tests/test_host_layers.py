"""Frozen layers kept in main memory: what they do not go with, and what a machine without a card makes of the key."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

from holdfast.core.config.config import Config
from holdfast.core.config.load import load_config
from holdfast.core.errors import Stop
from holdfast.trainer.model import streamed
from holdfast.trainer.model.decoder import decoder_layers
from holdfast.trainer.refuse import Refusal

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"adapter": {"type": "full"}}, "adapter.type full trains all of them; take an adapter, or adapter.type layers"),
    ({"train": {"fsdp": True, "ranks": 2}}, "train.fsdp cuts them between ranks; leave one of them out"),
]


@pytest.mark.parametrize(("tree", "sentence"), REFUSED, ids=[sentence for _, sentence in REFUSED])
def test_what_has_no_layers_to_keep_away_is_refused_with_a_sentence(
    config_of: Callable[..., Path], tree: dict[str, Any], sentence: str
) -> None:
    train = {"offload": "layers"} | tree.get("train", {})
    with pytest.raises(Stop) as stop:
        load_config(config_of(**(tree | {"train": train})), [])
    assert stop.value.code == 2 and sentence in str(stop.value)


@pytest.mark.parametrize(("offload", "device", "away"), [("layers", "cuda", True), ("layers", "cpu", False), (False, "cuda", False)])
def test_layers_are_kept_away_from_a_card_alone(offload: Any, device: str, away: bool) -> None:
    config = Config.model_validate({"model": "m", "data": {"files": "f"}, "train": {"offload": offload}})
    assert streamed.streams(config, torch.device(device)) is away


def test_an_architecture_without_marked_layers_is_refused() -> None:
    base = SimpleNamespace(modules=lambda: [torch.nn.Linear(2, 2)], base_model_prefix="model", model=None)
    with pytest.raises(Refusal, match=r"train.offload: layers is about decoder layers, and SimpleNamespace has none"):
        decoder_layers(base, "train.offload: layers")


def test_main_memory_that_is_too_small_is_told_before_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed, "host_memory", lambda: {"MemTotal": 1 << 20, "MemAvailable": 1 << 19})
    config = transformers.LlamaConfig(vocab_size=64, hidden_size=256, intermediate_size=256, num_hidden_layers=2, num_attention_heads=2)
    base = transformers.LlamaForCausalLM(config).requires_grad_(False)
    with pytest.raises(Refusal, match=r"keeps 3 MiB in main memory, which has 0 of 1 MiB left"):
        streamed.HostLayers(base, base, torch.device("cpu"))
