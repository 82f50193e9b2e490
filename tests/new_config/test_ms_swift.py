"""Configs and commands of ms-swift, which were taken for TRL's: a LoRA was trained as all weights, on prompts, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import Stop
from holdfast.config.config import Config
from holdfast.config.foreign.convert import convert
from holdfast.config.foreign.keys import Draft
from holdfast.config.foreign.read import read_foreign

HEAD = "model: Qwen/Qwen2.5-7B-Instruct\n"


def made(tmp_path: Path, text: str, name: str = "theirs.yaml") -> Draft:
    (tmp_path / name).write_text(text)
    source, known = read_foreign(tmp_path / name)
    assert source.program == "ms-swift"
    draft = convert(source, known=known)
    Config.model_validate(draft.as_tree())
    return draft


def test_a_lora_stays_a_lora_with_what_ms_swift_does_where_nothing_is_said(tmp_path: Path) -> None:
    tree = made(tmp_path, HEAD + "dataset: [rows.jsonl]\ntrain_type: lora\nmodel_name: Bob\nlearning_rate: 2e-4\nmax_length: 512\n").tree
    assert (tree["adapter.type"], tree["adapter.r"], tree["adapter.alpha"], tree["adapter.dropout"]) == ("lora", 8, 32, 0.05)
    assert tree["model"] == "Qwen/Qwen2.5-7B-Instruct", "model_name is what it is to call itself"
    assert (tree["train.lr"], tree["train.epochs"], tree["train.effective_batch"]) == (2e-4, 3, 16)
    assert (tree["train.beta2"], tree["train.weight_decay"], tree["data.too_long"]) == (0.95, 0.1, "reject")
    assert "data.train_on" not in tree and tree["data.files"] == ["rows.jsonl"] and tree["train.max_tokens"] == 512


@pytest.mark.parametrize(
    ("more", "key", "value"),
    [
        ("train_type: full", "train.lr", 1e-5),
        ("tuner_type: lora", "train.lr", 1e-4),
        ("loss_scale: last_round\nattn_impl: sdpa", "data.train_on", "last"),
        ("truncation_strategy: right", "data.too_long", "cut"),
        ("split_dataset_ratio: 0.01", "data.held_out", 0.01),
        ("train_type: lora\nquant_bits: 4", "train.double_quant", True),
        ("train_type: lora\nper_device_train_batch_size: 6", "train.effective_batch", 18),
        ("train_type: lora\nper_device_train_batch_size: 6\ngradient_accumulation_steps: 1", "train.effective_batch", 6),
        ("rlhf_type: orpo", "train.objective", "orpo"),
        ("rlhf_type: simpo", "preference.beta", 2.0),
        ("rlhf_type: simpo", "preference.margin", 1.0),
        ("rlhf_type: simpo\nsimpo_gamma: 0.7", "preference.margin", 0.7),
        ("rlhf_type: cpo\nloss_type: simpo", "preference.beta", 0.1),
    ],
)
def test_its_keys_are_carried(more: str, key: str, value: Any, tmp_path: Path) -> None:
    assert made(tmp_path, f"{HEAD}dataset: a/b\noutput_dir: out\nlearning_rate: null\n{more}\n").tree[key] == value


def test_a_pattern_of_layers_and_the_names_of_columns_are_carried(tmp_path: Path) -> None:
    text = f"{HEAD}dataset: rows.jsonl\noutput_dir: out\nlearning_rate: 1e-4\ntrain_type: lora\n"
    text += "target_modules: all-linear\ntarget_regex: '^model.*q_proj$'\n"
    tree = made(tmp_path, text + 'columns: \'{"ask": "query", "say": "response"}\'\n').tree
    assert tree["adapter.targets"] == "^model.*q_proj$"
    assert (tree["data.fields.query"], tree["data.fields.response"]) == ("ask", "say")
    for columns in ("no JSON", '{"ask": "label"}', "[1]", "5"):
        draft = made(tmp_path, f"{text}columns: '{columns}'\n")
        assert [row.fate for row in draft.rows if row.theirs == "columns"] == ["not_carried"]


def test_a_part_of_the_rows_is_left_to_do(tmp_path: Path) -> None:
    text = "NPROC_PER_NODE=4 swift pt --model m/n --dataset 'a/b:zh#500' rows.jsonl#20 --use_hf true --system 'Be kind'\n"
    draft = made(tmp_path, text, "train.sh")
    assert draft.tree["data.files"] == ["data/a-b-train-500.jsonl", "data/rows-20.jsonl"] and draft.tree["data.train_on"] == "all"
    assert draft.tree["train.effective_batch"] == 16, "four devices, of which each has four rows a step"
    told = " ".join(draft.todo)
    assert "load_dataset('a/b', 'zh', split='train[:500]')" in told and "holdfast data sample rows.jsonl --rows 20 --out" in told
    assert "system text" in told and "ModelScope" not in told


@pytest.mark.parametrize(("more", "why"), [("task_type: seq_cls", "task_type seq_cls"), ("rlhf_type: cpo", "CPO's own loss")])
def test_what_is_not_here_is_refused(more: str, why: str, tmp_path: Path) -> None:
    draft = made(tmp_path, f"{HEAD}dataset: a/b\ntrain_type: lora\nlearning_rate: 1e-4\n{more}\n")
    assert [why in told for told in draft.refused] == [True]


@pytest.mark.parametrize(
    ("text", "into"),
    [
        ("distributed_type: FSDP\nnum_processes: 4\nmixed_precision: bf16\n", "train: {ranks: 4, fsdp: true, precision: bf16}"),
        ("distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config: {zero_stage: 3}\n", "train: {ranks: 2, fsdp: true}"),
        ("zero_optimization: {stage: 2}\n", "--from train.py"),
    ],
)
def test_a_launchers_config_says_what_of_it_goes_where(text: str, into: str, tmp_path: Path) -> None:
    (tmp_path / "launch.yaml").write_text(text)
    with pytest.raises(Stop) as stop:
        read_foreign(tmp_path / "launch.yaml")
    assert stop.value.hint.endswith(into + (" into the config" if into.startswith("train") else ""))
