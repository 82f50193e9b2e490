"""What a loaded model computes with is compared with config.json: other versions of transformers read other keys, and say nothing."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from holdfast.base_model.as_loaded import unlike
from holdfast.base_model.folder import EMBEDDED, read_model
from holdfast.config.config import Config
from holdfast.config.settings import Settings
from holdfast.supervision.preparation.foresee import foresee
from holdfast.trainer.common.refuse import Refusal
from holdfast.trainer.model import load
from holdfast.trainer.model.plain import load_plain

FIXED = Settings(steps=1, samples=1, micro_batch_tokens=64, threads=1)
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}


def turned(base: float, size: int = 32, scale: float = 1.0) -> list[float]:
    return [scale * base ** (-at / size) for at in range(size)]


def scaled_low(base: float, factor: float, size: int = 32) -> list[float]:
    """As llama3 and yarn do it, about: the frequencies whose wavelength is beyond the context are divided."""
    return [value / (factor if 2 * math.pi / value > 8192 else 1) for value in turned(base, size)]


@pytest.mark.parametrize(
    ("written", "frequencies", "told"),
    [
        ({"rope_parameters": {"rope_theta": 1e5, "rope_type": "default"}}, [turned(1e4)], "base is 100,000, it computes with 10,000"),
        ({"rope_parameters": {"rope_theta": 1e5, "rope_type": "default"}}, [turned(1e5)], None),
        ({"rope_theta": 1e6, "rope_scaling": None}, [turned(1e4)], "base is 1,000,000, it computes with 10,000"),
        ({"rope_theta": 1e6}, [turned(1e6)], None),
        ({"rope_parameters": {**LLAMA3, "rope_theta": 5e5}}, [turned(1e4)], "with llama3 scaling, it computes with 10,000"),
        ({"rope_theta": 5e5, "rope_scaling": LLAMA3}, [turned(5e5)], "with llama3 scaling, it computes with 500,000"),
        ({"rope_theta": 5e5, "rope_scaling": LLAMA3}, [scaled_low(5e5, 8)], None),
        ({"rope_parameters": {**YARN, "rope_theta": 1e6}}, [turned(1e6)], "yarn scaling"),
        ({"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 4.0}}, [turned(1e4, scale=0.25)], None),
        ({"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 4.0}}, [turned(1e4)], "with linear scaling"),
        ({"rope_theta": 1e4}, [turned(1e4, scale=0.25)], "10,000 with frequencies times 0.25"),
        ({"rope_parameters": {"full": {"rope_theta": 1e6}, "sliding": {"rope_theta": 1e4}}}, [turned(1e6), turned(1e4)], None),
        ({"rope_parameters": {"full": {"rope_theta": 1e6}, "sliding": {"rope_theta": 1e4}}}, [turned(5e5)], "base is 1,000,000"),
        ({"rope_parameters": {"full": {"rope_theta": 1e6}, "sliding": {"rope_theta": 1e4}}}, [turned(1e4)], None),  # of one kind of layer
        ({"rope_theta": 1e6, "rope_local_base_freq": 1e4}, [turned(1e6), turned(1e4)], None),
        ({"rope_theta": 1e6, "rope_local_base_freq": 1e4}, [turned(1e4)], None),  # no layer of the other kind
        ({"rope_theta": 1e6, "rope_local_base_freq": 1e4}, [turned(5e5)], "base is 1,000,000"),
        ({"rope_theta": 5e6}, [[5e6 ** (-2 * at / 5) for at in range(3)]], None),  # of an odd number of dimensions
        ({"rope_theta": 5e5}, [[*turned(5e5)[0::2], *turned(5e5)[1::2]]], None),  # of height and width by turns, as ERNIE 4.5 VL
        ({"rope_theta": 5e5}, [[*turned(1e4)[0::2], *turned(1e4)[1::2]]], "base is 500,000, it computes with 10,000"),
        ({"rope_theta": 1e6, "rope_scaling": {"type": "longrope", "short_factor": [1.0]}}, [turned(1e4)], None),  # a form not known
        ({"rope_theta": 1e6}, [], None),  # positions of another kind
        ({}, [turned(1e4)], None),
    ],
)  # fmt: skip
def test_a_rope_that_is_not_that_of_the_config_is_told(written: dict[str, Any], frequencies: Any, told: str | None) -> None:
    found = unlike(written, {}, frequencies)
    assert (told is None and not found) or (told is not None and told in found[0]), found


def test_other_numbers_that_a_model_computes_with_are_told() -> None:
    written = {"rms_norm_eps": 1e-5, "hidden_act": "silu", "num_key_value_heads": None, "use_cache": True, "logits_scaling": 8}
    assert not unlike(written, {"rms_norm_eps": 9.9999999e-6, "hidden_act": "silu", "num_key_value_heads": 4, "logits_scaling": 8.0}, [])
    assert unlike(written, {"rms_norm_eps": 1e-6, "hidden_act": "gelu", "use_cache": False}, []) == [
        "rms_norm_eps is 1e-05, it computes with 1e-06",
        "hidden_act is 'silu', it computes with 'gelu'",
    ]


def test_a_folder_that_this_transformers_reads_wrongly_is_refused_before_anything_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As transformers 4 reads a folder of 5: it keeps `rope_parameters` as a key it does not know, and takes the base 10,000."""
    tiny = EMBEDDED["tiny"]
    for file in tiny.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    written = json.loads((tiny / "config.json").read_text())
    written["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e5}
    (tmp_path / "config.json").write_text(json.dumps(written))
    config = Config.model_validate({"model": str(tmp_path), "data": {"files": ["rows.jsonl"]}})
    load.load_base(config, FIXED, torch.device("cpu"))

    class Older(transformers.AutoModelForCausalLM):
        @classmethod
        def from_pretrained(cls, folder: Path, **given: Any) -> Any:
            read = transformers.AutoConfig.from_pretrained(folder)
            read.rope_parameters = {"rope_type": "default", "rope_theta": 1e4}
            return super().from_pretrained(folder, config=read, **given)

    monkeypatch.setattr(load, "loader", lambda facts: Older)
    monkeypatch.setattr("holdfast.trainer.model.plain.loader", lambda facts: Older)
    with pytest.raises(Refusal, match="the RoPE base is 100,000, it computes with 10,000") as refused:
        load.load_base(config, FIXED, torch.device("cpu"))
    assert "pip install --upgrade transformers" in refused.value.hint
    with pytest.raises(ValueError, match="the RoPE base is 100,000"):
        load_plain(str(tmp_path), None, torch.device("cpu"))
    assert read_model(str(tmp_path)).folder == tmp_path


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "the RoPE base is 100,000, it computes with 10,000"),
        ({"rope_theta": 1e6}, ""),  # `rope_parameters` holds
    ],
)
def test_the_doctor_tells_of_a_base_that_train_refuses(tmp_path: Path, written: dict[str, Any], told: str) -> None:
    """`rope_scaling` wins over `rope_parameters` in transformers 5, which then takes the base 10,000."""
    for file in EMBEDDED["tiny"].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    own = json.loads((tmp_path / "config.json").read_text()) | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e5}}
    (tmp_path / "config.json").write_text(json.dumps(own | written))
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"prompt": "{n} and one", "completion": "{n + 1}"}}\n' for n in range(20)))
    config = Config.model_validate({"model": str(tmp_path), "data": {"files": [str(tmp_path / "rows.jsonl")]}})
    found = [finding for finding in foresee(config, {}).findings if finding.id == "model-as-loaded"]
    assert [finding.severity for finding in found] == ["block"] * bool(told)
    refused = None
    try:
        load.load_base(config, FIXED, torch.device("cpu"))
    except Refusal as refusal:
        refused = str(refusal)
    assert [refused] * bool(told) == [finding.message for finding in found] and (told in (refused or ""))
