"""adapter.targets and a received adapter's target_modules as patterns: one that could search without end is refused, not tried."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from holdfast.base.errors import BLOCKED, Stop
from holdfast.base_model.module_pattern import refused
from holdfast.config.adapter import Adapter
from holdfast.export.delta import _alpha
from holdfast.run.adapter_folder import read_start, settled

ENDLESS = (
    *(r"(([a-z_.0-9])+)+!", r"(.*)*!", r"(?:a|a)*!", r"(?:\w+\.)+!", r"(a?){50}a{50}", r".*.*.*.*.*!", "a?" * 30 + "a" * 30),
    *("(a|aa)" * 30, r"(?=(.+)+!).*", "x" * 5000, "(", "(" * 3000, r"(\w{1,9}){1,99}!", r"(?:(?:a|b|ab)(?:c|d|cd)?){9}!", "a{99999999999}"),
)
ORDINARY = (
    *("all-linear", "q_proj", r".*\.(q_proj|v_proj)", r"model\.layers\.\d+\.self_attn\.[qkvo]_proj", r"^(?!.*lm_head).*proj$"),
    *(r".*(?:q|k|v|o|gate|up|down)_proj", r"(?:model\.)?layers\.(?:[0-9]|1[0-5])\..*", r"model\.layers\.(?:\d\d){1}\..*"),
    r"(?:.*?(?:vision|language).*?(?:self_attn|mlp).*?(?:q_proj|k_proj).*?)|(?:\bmodel\.layers\.[\d]{1,}\.(?:self_attn|mlp)\.(?:q_proj))",
)


@pytest.mark.parametrize("pattern", ENDLESS, ids=lambda pattern: pattern[:20])
def test_a_pattern_without_end_is_refused(pattern: str, tmp_path: Path) -> None:
    with pytest.raises(ValidationError):
        Adapter(targets=pattern)
    with pytest.raises(Stop) as stop:
        settled(Adapter(), {"path": "a", "r": 8, "alpha": 16.0, "targets": pattern})
    assert stop.value.code == BLOCKED


BAD_ALPHAS: tuple[dict[str, object], ...] = (
    *({"alpha_pattern": [1]}, {"alpha_pattern": {"q_proj": "much"}}, {"alpha_pattern": {"(a+)+!": 8}}, {"alpha_pattern": {"(": 8}}),
    *({"lora_alpha": {}}, {"lora_alpha": True}, {"lora_alpha": float("nan")}, {"lora_alpha": None}),
)


@pytest.mark.parametrize("config", BAD_ALPHAS, ids=str)
def test_an_adapter_to_be_merged_has_a_number_for_its_alpha(config: dict[str, object]) -> None:
    assert _alpha("layers.1.q_proj", {"lora_alpha": 16, "alpha_pattern": {"k_proj": 4, "1.q_proj": 32}}, 8) == 32
    with pytest.raises(Stop, match="alpha"):
        _alpha("layers.1.q_proj", config, 8)


@pytest.mark.parametrize("pattern", ORDINARY, ids=lambda pattern: pattern[:20])
def test_a_pattern_that_people_write_is_taken(pattern: str) -> None:
    assert Adapter(targets=pattern).targets == pattern
    assert refused(pattern) is None


@pytest.mark.parametrize("targets", [ENDLESS[0], 7, {"a": 1}, ["q_proj", 7], [["q_proj"]], True])
def test_an_adapter_with_targets_that_are_none_is_refused(targets: object, tmp_path: Path) -> None:
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": targets}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    (tmp_path / "adapter_model.safetensors").write_bytes(b"never read")
    with pytest.raises(Stop, match="target_modules") as stop:
        read_start(tmp_path)
    assert stop.value.code == BLOCKED
