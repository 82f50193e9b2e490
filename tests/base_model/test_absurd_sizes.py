"""Sizes that no model has are refused where config.json is read, before anything is built of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import Stop
from holdfast.base_model.folder import read_description, read_model

_SOUND = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 400}


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("num_hidden_layers", {"num_hidden_layers": 10**9}),
        ("num_hidden_layers", {"num_hidden_layers": 1e9}),
        ("n_layer", {"n_layer": 1 << 40}),
        ("num_hidden_layers", {"text_config": {"num_hidden_layers": 10**9}}),
        ("num_hidden_layers", {"vision_config": {"num_hidden_layers": 10**9}}),
        ("hidden_size", {"hidden_size": 1 << 50}),
        ("vocab_size", {"vocab_size": 10**12}),
        ("intermediate_size", {"thinker_config": {"audio_config": {"intermediate_size": 10**10}}}),
        ("num_local_experts", {"num_local_experts": 10**7}),
    ],
)
def test_a_size_beyond_all_models_is_refused_at_once(tmp_path: Path, name: str, change: dict[str, Any]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(_SOUND))
    assert read_description(str(tmp_path)).config == _SOUND
    (tmp_path / "config.json").write_text(json.dumps(_SOUND | change))
    for read in (read_description, read_model):
        with pytest.raises(Stop, match=f"config.json: {name} = .* is not a model size"):
            read(str(tmp_path))
