"""What newcomers write by mistake, each answered with the fact, the place and what to write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.base.errors import Stop
from holdfast.cli.main import main
from holdfast.config.load import load_config

BASE: dict[str, Any] = {"model": "tiny", "data": {"files": "rows.jsonl"}}
MISTAKES = [
    ({"data": "rows.jsonl"}, "data", "data: {files: rows.jsonl}"),
    ({"adapter": "lora"}, "adapter", "adapter: {type: lora}"),
    ({"train": {"batchsize": 4}}, "train.batchsize", "effective_batch"),
    ({"train": {"batch_size": 4}}, "train.batch_size", "effective_batch"),
    ({"train": {"device": "cuda"}}, "train.device", "CUDA_VISIBLE_DEVICES"),
    ({"adapter": {"kind": "qlora"}}, "adapter.kind", "train.frozen: nf4"),
    ({"adapter": {"type": "qlora"}}, "adapter.type", "train.frozen: nf4"),
    ({"train": {"weights": "full"}}, "train.weights", "adapter: {type: full}"),
    ({"full": True}, "full", "adapter: {type: full}"),
    ({"adapter": {"lora_alpha": 16}}, "adapter.lora_alpha", "adapter.alpha"),
    ({"train": {"num_train_epochs": 3}}, "train.num_train_epochs", "train.epochs"),
    ({"train": {"learning_rate": 1e-4}}, "train.learning_rate", "train.lr"),
    ({"load_in_4bit": True}, "load_in_4bit", "train.frozen"),
    ({"train": {"epochs": 1, "steps": 5}}, "train", "not both"),
    ({"train": {"lr": "fast"}}, "train.lr", "number"),
    ({"report_to": "wandb"}, "report_to", "run.track"),
    ({"train": {"memory_limit": 8}}, "train.memory_limit: 8: 8 bytes hold no model", "did you mean 8GiB?"),
    ({"train": {"memory_limit": "16"}}, "train.memory_limit", "did you mean 16GiB?"),
    ({"train": {"memory_limit": 7.5}}, "train.memory_limit", "did you mean 7.5GiB?"),
    ({"train": {"memory_limit": 24000}}, "train.memory_limit", "did you mean 24000MiB?"),
    ({"train": {"memory_limit": "8G"}}, "train.memory_limit", "did you mean 8GiB?"),
    ({"train": {"memory_limit": "8KiB"}}, "train.memory_limit", "8,192 bytes hold no model"),
    ({"train": {"memory_limit": 0}}, "train.memory_limit", "write for example 8GiB"),
]


@pytest.mark.parametrize(("more", "place", "write"), MISTAKES, ids=[f"{place}-{at}" for at, (_, place, _) in enumerate(MISTAKES)])
def test_a_mistake_in_a_config_is_answered(tmp_path: Path, more: dict[str, Any], place: str, write: str) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(BASE | more))
    with pytest.raises(Stop) as stop:
        load_config(tmp_path / "a.yaml")
    assert stop.value.code == 2
    assert f"- {place}" in stop.value.message
    assert write in f"{stop.value}"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["explain", "memory"], "gpu-oom-allocator"),
        (["explain", "oom"], "memory"),
        (["explain", "HIPBLAS_STATUS_INTERNAL_ERROR"], "Remedies"),
    ],
)
def test_explain_takes_words_and_lines(capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    assert main(words) == 0
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["data", "clean", "r.jsonl", "--out", "o.jsonl", "--drop", "duplicat"], "did you mean duplicate?"),
        (["plan", "a.yaml", "--card", "MI51"], "did you mean MI"),
    ],
)
def test_a_wrong_word_is_answered_with_the_near_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(BASE))
    assert main(words) == 2
    assert said in capsys.readouterr().err
