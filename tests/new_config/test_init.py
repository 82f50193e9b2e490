"""A first config: chosen from rows and model, or made of another trainer's file with every key accounted for."""

from __future__ import annotations

import errno
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from pytest import approx

from conftest import make_rows, write_rows
from holdfast.base.errors import Stop
from holdfast.config.config import Config
from holdfast.config.foreign.convert import convert
from holdfast.config.foreign.keys import Draft, flatten
from holdfast.config.foreign.read import read_foreign
from holdfast.config.load import load_config
from holdfast.new_config.make import from_answers
from holdfast.planning.advice import advise, usual_lr
from holdfast.run.sampling.step_table import learning_rate

AXOLOTL = """
base_model: NousResearch/Llama-3.2-1B
datasets:
  - {path: rows.jsonl, ds_type: json, type: chat_template}
val_set_size: 0.1
adapter: qlora
load_in_4bit: true
sequence_len: 2048
sample_packing: true
lora_r: 16
lora_alpha: 32
lora_dropout: 0.05
lora_target_linear: true
micro_batch_size: 2
gradient_accumulation_steps: 4
num_epochs: 3
optimizer: paged_adamw_8bit
lr_scheduler: cosine
learning_rate: 1e-4
warmup_steps: 10
bf16: auto
gradient_checkpointing: true
flash_attention: true
special_tokens: {pad_token: "<|end|>"}
no_such_key_of_axolotl: 5
wandb_project:
"""
LLAMA_FACTORY = """
model_name_or_path: Qwen/Qwen3-4B
stage: dpo
finetuning_type: lora
lora_rank: 8
lora_target: q_proj,v_proj
pref_beta: 0.2
pref_loss: sigmoid
dataset: mine
template: qwen3
cutoff_len: 1024
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 5.0e-6
num_train_epochs: 1.0
bf16: true
max_samples: 1000
"""
TRL = """
model_name_or_path: Qwen/Qwen2.5-0.5B
dataset_name: trl-lib/Capybara
use_peft: true
lora_r: 32
learning_rate: 2.0e-4
lr_scheduler_type: constant_with_warmup
warmup_ratio: 0.1
per_device_train_batch_size: 4
max_length: 512
max_steps: 50
num_train_epochs: 2
report_to: [wandb]
"""
SOUP = """
base: Qwen/Qwen2.5-7B-Instruct
task: sft
data: {train: ./data/train.jsonl, format: alpaca, val_split: 0.05, max_length: 1024}
training:
  epochs: 2
  lr: 1e-4
  batch_size: 4
  quantization: 4bit
  lora: {r: 8, alpha: 16, target_modules: auto}
output: ./out
"""
TORCHTUNE = """
output_dir: /tmp/out/one
model:
  _component_: torchtune.models.llama3_2.lora_llama3_2_1b
  lora_attn_modules: [q_proj, output_proj]
  apply_lora_to_mlp: true
  lora_rank: 64
  lora_alpha: 128
checkpointer: {_component_: torchtune.training.FullModelHFCheckpointer, checkpoint_dir: /tmp/Llama, output_dir: "${output_dir}"}
dataset: {_component_: torchtune.datasets.alpaca_cleaned_dataset, packed: false}
batch_size: 4
gradient_accumulation_steps: 8
epochs: 1
optimizer: {_component_: torch.optim.AdamW, lr: 3e-4, weight_decay: 0.01}
lr_scheduler: {_component_: torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup, num_warmup_steps: 100}
clip_grad_norm: null
dtype: bf16
"""
SCRIPT = """
import torch
from trl import SFTConfig, SFTTrainer
from peft import LoraConfig
from datasets import load_dataset
import os
open("was-run", "w")
LR = 1e-4
dataset = load_dataset("json", data_files="rows.jsonl", split="train")
peft = LoraConfig(r=8, lora_alpha=32, target_modules=["q_proj", "v_proj"], lora_dropout=0.0)
args = SFTConfig(output_dir="out/mine", learning_rate=LR * 2, per_device_train_batch_size=2, gradient_accumulation_steps=2 * 2,
                 num_train_epochs=int(os.environ["EPOCHS"]), max_length=256, seed=7, optim="adamw_torch")
SFTTrainer(model="tiny-model", args=args, train_dataset=dataset, peft_config=peft).train()
"""
COMMAND = """#!/bin/bash
MODEL=Qwen/Qwen2-0.5B
accelerate launch --num_processes 2 trl/scripts/sft.py \\
    --model_name_or_path $MODEL \\
    --dataset_name trl-lib/Capybara \\
    --learning_rate=2.0e-5 \\
    --packing \\
    --per_device_train_batch_size 2 --gradient_accumulation_steps 8 \\
    --use_peft --lora_r 32 --lora_alpha 16 --lora_target_modules q_proj, v_proj \\
    --output_dir $OUT
"""


def made_of(tmp_path: Path, name: str, text: str) -> Draft:
    file = tmp_path / name
    file.write_text(text)
    source, known = read_foreign(file)
    draft = convert(source, known=known)
    Config.model_validate(draft.as_tree())
    assert [row.theirs for row in draft.rows] == [key.theirs for key in source.keys]
    assert all(row.why and row.fate in ("carried", "changed", "not_carried") for row in draft.rows)
    return draft


def fate_of(draft: Draft, key: str) -> str:
    return next(row.fate for row in draft.rows if row.theirs == key)


def test_an_axolotl_config_is_carried_key_by_key(tmp_path: Path) -> None:
    draft = made_of(tmp_path, "a.yml", AXOLOTL)
    tree = draft.tree
    assert (tree["train.effective_batch"], tree["train.lr"], tree["train.epochs"], tree["train.warmup"]) == (8, 1e-4, 3, 10)
    assert (tree["train.frozen"], tree["train.optimizer"], tree["adapter.targets"]) == ("nf4", "paged", "all-linear")
    assert (tree["data.files"], tree["data.format"], tree["data.held_out"], tree["train.seed"]) == (["rows.jsonl"], "chat", 0.1, 42)
    every = {key.theirs for key in flatten(yaml.safe_load(AXOLOTL))}
    assert every == {row.theirs for row in draft.rows} >= {"datasets", "datasets[0].path", "special_tokens.pad_token"}
    assert fate_of(draft, "learning_rate") == "carried"
    assert fate_of(draft, "micro_batch_size") == "changed"
    unknown = next(row for row in draft.rows if row.theirs == "no_such_key_of_axolotl")
    assert unknown.fate == "not_carried"
    assert "no such key" in unknown.why


def test_weight_decay_is_said_to_reach_what_a_trainer_leaves_out(tmp_path: Path) -> None:
    """transformers' own list of what decays lacks norms and biases; ours is every trained weight."""
    draft = made_of(tmp_path, "t.yaml", TRL + "weight_decay: 0.1\n")
    (row,) = [row for row in draft.rows if row.theirs == "weight_decay"]
    assert draft.tree["train.weight_decay"] == 0.1 and "leaves norms and biases out" in row.why
    (same,) = [row for row in made_of(tmp_path, "torchtune.yaml", TORCHTUNE).rows if row.theirs == "optimizer.weight_decay"]
    assert "norms" not in same.why, "torchtune gives AdamW all parameters as one group"


@pytest.mark.parametrize("key", ["peft_use_rslora", "peft_use_dora"])
@pytest.mark.parametrize("first", [True, False])
def test_a_variant_of_lora_is_carried_whichever_key_comes_first(key: str, first: bool, tmp_path: Path) -> None:
    variant = f"{key}: true\n"
    draft = made_of(tmp_path, "a.yml", variant + AXOLOTL if first else AXOLOTL + variant)
    assert draft.tree["adapter.type"] == key.removeprefix("peft_use_")
    assert fate_of(draft, key) == "carried" and fate_of(draft, "adapter") != "not_carried"


def test_a_llama_factory_config_finds_its_rows_in_dataset_info(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "dataset_info.json").write_text(json.dumps({"mine": {"file_name": "pairs.json"}}))
    tree = made_of(tmp_path, "l.yaml", LLAMA_FACTORY).tree
    assert (tree["train.objective"], tree["preference.beta"], tree["preference.loss"]) == ("dpo", 0.2, "sigmoid")
    assert (tree["adapter.targets"], tree["adapter.alpha"], tree["data.files"]) == (
        ["q_proj", "v_proj"],
        16.0,
        [str(tmp_path / "data" / "pairs.json")],
    )


def test_a_trl_config_keeps_its_defaults(tmp_path: Path) -> None:
    draft = made_of(tmp_path, "t.yaml", TRL)
    tree = draft.tree
    assert (tree["train.steps"], tree["train.schedule"], tree["run.track"]) == (50, "constant", ["wandb"])
    assert "train.epochs" not in tree
    assert (tree["train.effective_batch"], tree["train.seed"]) == (4, 42)
    assert any("load_dataset('trl-lib/Capybara'" in one for one in draft.todo)


@pytest.mark.parametrize("told", ["warmup_ratio: 0.1", "warmup_steps: 10"])
@pytest.mark.parametrize("name", ["linear", "cosine", "constant_with_warmup", "constant"])
def test_a_schedule_of_transformers_is_carried_with_its_rates(tmp_path: Path, name: str, told: str) -> None:
    """Transformers' constant knows no warm-up, whatever a config says of one: a tenth of the steps had too small a rate here."""
    import torch
    from transformers import get_scheduler

    given = TRL.replace("constant_with_warmup", name).replace("warmup_ratio: 0.1", told).replace("max_steps: 50", "max_steps: 100")
    draft = made_of(tmp_path, "t.yaml", given)
    tree = draft.tree
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=tree["train.lr"])
    schedule, theirs = get_scheduler(name, optimizer, num_warmup_steps=10, num_training_steps=100), []
    for _ in range(100):
        theirs += schedule.get_last_lr()
        optimizer.step()
        schedule.step()
    ours = [learning_rate(step, 100, tree["train.lr"], tree["train.schedule"], tree["train.warmup"]) for step in range(1, 101)]
    behind = 0 if name == "constant" else 10
    assert ours[:behind] == approx(theirs[1 : 1 + behind]), "theirs begins with a step at rate 0"
    assert ours[behind:] == approx(theirs[behind:])
    key = told.split(":")[0]
    assert fate_of(draft, key) == ("changed" if name == "constant" else "carried")


def test_soup_and_torchtune(tmp_path: Path) -> None:
    soup = made_of(tmp_path, "s.yaml", SOUP).tree
    assert (soup["train.effective_batch"], soup["train.frozen"], soup["train.lr"], soup["adapter.targets"]) == (
        4,
        "nf4",
        1e-4,
        "all-linear",
    )
    tune = made_of(tmp_path, "u.yaml", TORCHTUNE).tree
    assert tune["adapter.targets"] == ["q_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    assert (tune["train.effective_batch"], tune["train.warmup"], tune["run.name"], tune["model"]) == (32, 100, "one", "/tmp/Llama")
    assert tune["train.max_grad_norm"] == 1e6


def test_a_script_is_read_and_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    draft = made_of(tmp_path, "train.py", SCRIPT)
    assert not (tmp_path / "was-run").exists()
    tree = draft.tree
    assert (tree["train.lr"], tree["train.effective_batch"], tree["adapter.r"], tree["train.seed"]) == (2e-4, 8, 8, 7)
    assert (tree["model"], tree["data.files"]) == ("tiny-model", ["rows.jsonl"])
    computed = next(row for row in draft.rows if row.theirs == "num_train_epochs")
    assert computed.fate == "not_carried"
    assert "train.epochs" in computed.why


@pytest.mark.parametrize("given", ["'tiny-model', args=args", "NAME, args=args", "model='tiny-model', args=args"])
def test_the_model_is_named_by_place_or_by_keyword(given: str, tmp_path: Path) -> None:
    text = "from trl import SFTTrainer, SFTConfig\nNAME = 'tiny-model'\nargs = SFTConfig(output_dir='o')\n"
    draft = made_of(tmp_path, "s.py", f"{text}SFTTrainer({given}, train_dataset=None).train()\n")
    assert draft.tree["model"] == "tiny-model"


def test_a_notebook_is_read_as_its_cells(tmp_path: Path) -> None:
    cells = [
        {"cell_type": "code", "source": ["!pip install trl\n", *SCRIPT.splitlines(keepends=True)]},
        {"cell_type": "markdown", "source": ["# x"]},
    ]
    assert made_of(tmp_path, "n.ipynb", json.dumps({"cells": cells})).tree["adapter.r"] == 8


def test_a_command_line_is_read(tmp_path: Path) -> None:
    draft = made_of(tmp_path, "go.sh", COMMAND)
    tree = draft.tree
    assert (tree["model"], tree["train.effective_batch"], tree["train.lr"]) == ("Qwen/Qwen2-0.5B", 32, 2e-5)
    assert (tree["train.packing"], tree["adapter.targets"]) == (True, ["q_proj", "v_proj"])
    assert "computed" in next(row.why for row in draft.rows if row.theirs == "output_dir")


def test_what_holdfast_cannot_train_is_not_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "g.yaml", tmp_path / "o.yaml"
    file.write_text(AXOLOTL + "\nrl: grpo\n")
    code = _main(["init", "--from", str(file), "--out", str(out), "--json"])
    printed = capsys.readouterr()
    answer = json.loads(printed.out)
    assert (code, answer["config"], out.exists()) == (1, None, False)
    assert "holdfast run --callback" in printed.err
    assert {row["theirs"] for row in answer["keys"]} >= {"rl", "base_model"}


def _main(words: list[str]) -> int:
    from holdfast.cli.main import main

    return main(words)


@pytest.mark.usefixtures("no_alternatives")
def test_init_writes_a_config_that_loads_with_its_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, out = tmp_path / "rows.jsonl", tmp_path / "mine.yaml"
    write_rows(rows, make_rows(60))
    assert _main(["init", "--model", "tiny", "--data", str(rows), "--goal", "quick", "--out", str(out), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["config"], answer["keys"]) == (str(out), [])
    config = load_config(out)
    assert (config.model, config.train.epochs, config.adapter.type) == ("tiny", 1.0, "lora")
    assert answer["plan"]["fits"] is True
    assert json.loads(out.with_suffix(".plan.json").read_text())["peak_bytes"] == answer["plan"]["peak_bytes"]
    values = [line for line in out.read_text().splitlines() if line.startswith("  ") and not line.lstrip().startswith("#")]
    assert sum("#" in line for line in values) >= len(values) - 2  # nearly each with its reason
    assert _main(["init", "--model", "tiny", "--data", str(rows), "--out", str(out)]) == 2  # nothing is overwritten


@pytest.mark.usefixtures("no_alternatives")
def test_a_plan_that_the_disk_does_not_give_is_told_as_unknown_and_the_config_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "mine.plan.json")

    monkeypatch.setattr("holdfast.cli.commands.init.write_json", fails)
    rows, out = tmp_path / "rows.jsonl", tmp_path / "mine.yaml"
    write_rows(rows, make_rows(60))
    assert _main(["init", "--model", "tiny", "--data", str(rows), "--out", str(out), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["plan"] is None and out.exists()
    assert "no room on the disk of mine.plan.json" in answer["plan_unknown"] and "holdfast plan" in answer["plan_unknown"]


def test_rows_decide_the_objective(tmp_path: Path) -> None:
    from holdfast.new_config.rows import look_at_rows

    pairs = tmp_path / "pairs.jsonl"
    write_rows(pairs, [{"prompt": f"q {n}", "chosen": f"yes {n} indeed", "rejected": "no"} for n in range(9)])
    table = tmp_path / "table.csv"
    table.write_text("a,b,price\n" + "".join(f"{n},{n * 2},{n * 3}\n" for n in range(9)))
    assert (look_at_rows([str(pairs)], None).kind, look_at_rows([str(table)], None).kind) == ("pairs", "table")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["init", "--out", "x.yaml"], "holdfast init --model"),
        (["init", "--from", "nowhere.yaml", "--out", "x.yaml"], "no such file"),
        (["init", "--from", "launch.yaml", "--out", "x.yaml"], "launcher"),
        (["init", "--from", "plain.py", "--out", "x.yaml"], "holdfast run --callback"),
        (["init", "--model", "./no-folder", "--data", "rows.jsonl", "--out", "x.yaml"], "no such folder"),
        (["init", "--model", "./modles-7b", "--data", "rows.jsonl", "--out", "x.yaml"], "did you mean models-7b?"),
        (["init", "--model", "nope", "--data", "rows.jsonl", "--out", "x.yaml"], "a model there is named OWNER/NAME"),
        (["init", "--from", "axolotl.yaml", "--model", "nope", "--out", "x.yaml"], "a model there is named OWNER/NAME"),
        (["init", "--model", "modles-7b", "--data", "rows.jsonl", "--out", "x.yaml"], "did you mean models-7b?"),
        (["init", "--model", "https://hf.co/a/b", "--data", "rows.jsonl", "--out", "x.yaml"], "write a/b"),
        (["init", "--model", "nope.gguf", "--data", "rows.jsonl", "--out", "x.yaml"], "--model nope.gguf: no such file"),
        (["init", "--model", "models-7b/qwen", "--data", "rows.jsonl", "--out", "x.yaml"], "--model models-7b/qwen: no such folder"),
        (["init", "--model", "tiny", "--data", "rows.jsonl", "--out", "x.txt"], "-> --out x.yaml"),
        (["init", "--model", "tiny", "--data", "rows.jsonl", "--card", "RTX 9999", "--out", "x.yaml"], "--memory"),
    ],
)
def test_what_is_missing_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "rows.jsonl", make_rows(5))
    (tmp_path / "launch.yaml").write_text("compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\n")
    (tmp_path / "plain.py").write_text("print(1)\n")
    (tmp_path / "axolotl.yaml").write_text("base_model: a/b\nmicro_batch_size: 1\n")
    (tmp_path / "models-7b").mkdir()
    assert _main(words) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "x.yaml").exists()


@pytest.mark.parametrize("model", ["gpt2", "bert-base-uncased", "distilgpt2@main"])
def test_the_hubs_oldest_models_have_no_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "rows.jsonl", make_rows(5))
    assert from_answers(model, ["rows.jsonl"], "").tree["model"] == model


def test_advice_follows_size_rows_and_kind() -> None:
    assert usual_lr(70_000_000_000, "lora") < usual_lr(7_000_000_000, "lora") < usual_lr(135_000_000, "lora")
    assert usual_lr(7_000_000_000, "full") * 10 == usual_lr(7_000_000_000, "lora")
    assert [next(advise(size, 300)).reason.split(", ")[0] for size in (2_720_000, 7_600_000_000)] == [
        "usual for lora on 2.72 million parameters",
        "usual for lora on 7.6 billion parameters",
    ]
    few, many = ({one.key: one.value for one in advise(10**9, rows)} for rows in (300, 100_000))
    assert few["train.epochs"] > many["train.epochs"] == 1
    assert few["adapter.r"] < many["adapter.r"]


@pytest.mark.skipif("HOLDFAST_FOREIGN_CONFIGS" not in os.environ, reason="a folder with the trainers' own examples")
def test_every_key_of_the_trainers_own_examples_is_accounted_for() -> None:
    """Each key has a fate and a reason, no reason is that nobody knows the key, and what comes out is a config."""
    unknown: Counter[str] = Counter()
    keys = files = 0
    for file in sorted(Path(os.environ["HOLDFAST_FOREIGN_CONFIGS"]).rglob("*")):
        if file.suffix not in (".py", ".yaml", ".yml", ".sh", ".ipynb"):
            continue
        try:
            source, known = read_foreign(file)
        except Stop:
            continue
        draft: Any = convert(source, known=known)
        Config.model_validate(draft.as_tree())
        assert [row.theirs for row in draft.rows] == [key.theirs for key in source.keys]
        unknown.update(row.theirs for row in draft.rows if "knows no such key" in row.why)
        files, keys = files + 1, keys + len(draft.rows)
    print(f"{files} files, {keys} keys, {unknown.total()} unknown")
    assert files > 100
    assert not unknown


TRAINS = "from trl import SFTTrainer, SFTConfig\nfrom datasets import load_dataset, concatenate_datasets\n"
GIVEN = "SFTTrainer(model='m', args=SFTConfig(output_dir='o'), train_dataset={}, eval_dataset={}).train()\n"


def rows_of_script(tmp_path: Path, text: str, train: str, evaluated: str = "None") -> Draft:
    return made_of(tmp_path, "s.py", TRAINS + text + GIVEN.format(train, evaluated))


@pytest.mark.parametrize(
    ("text", "train", "evaluated", "files", "held"),
    [
        (
            "a = load_dataset('json', data_files='a.jsonl')['train']\nb = load_dataset('json', data_files='b.jsonl')",
            "a",
            "b['train']",
            "a",
            "b",
        ),
        (
            "a = load_dataset('json', data_files='a.jsonl', split='train')\nb = load_dataset('json', data_files='b.jsonl', split='train')",
            "b",
            "a",
            "b",
            "a",
        ),
        ("d = load_dataset('json', data_files={'train': 'a.jsonl', 'test': 'b.jsonl'})", "d['train']", "d['test']", "a", "b"),
        ("d = load_dataset('json', data_files={'train': 'a.jsonl', 'test': 'b.jsonl'})", "d['test']", "None", "b", ""),
        (
            "d = load_dataset('json', data_files={'train': 'a.jsonl', 'test': 'b.jsonl'})\nd = d.map(len)\nt = d['train'].shuffle(seed=1)",
            "t",
            "d['test']",
            "a",
            "b",
        ),
        ("d = load_dataset('json', data_files='a.jsonl', split='train').train_test_split(0.1)", "d['train']", "d['test']", "a", ""),
        ("a, b = load_dataset('json', data_files={'x': 'a.jsonl', 'y': 'b.jsonl'}, split=['x', 'y'])", "a", "b", "a", "b"),
        ("S = 'test'\nd = load_dataset('json', data_files={'train': 'a.jsonl', S: 'b.jsonl'}, split=S)", "d", "None", "b", ""),
    ],
)
def test_of_a_script_the_rows_are_those_its_trainer_is_given(
    text: str, train: str, evaluated: str, files: str, held: str, tmp_path: Path
) -> None:
    tree = rows_of_script(tmp_path, text + "\n", train, evaluated).tree
    assert (tree["data.files"], tree.get("data.held_out_files", [])) == ([f"{files}.jsonl"], [f"{held}.jsonl"] if held else [])


@pytest.mark.parametrize(
    ("text", "train", "saved", "asked"),
    [
        ("a = load_dataset('o/n', split='train')\nb = load_dataset('o/n', split='test')", "a", ["'o/n', split='train'"], False),
        ("a = load_dataset('o/n', split='train')\nb = load_dataset('o/n', split='test')", "b", ["'o/n', split='test'"], False),
        ("d = load_dataset('o/n')", "d['test']", ["'o/n', split='test'"], False),
        ("d = load_dataset('o/n', 'main')", "d['train'].select(range(9))", ["'o/n', 'main', split='train'"], False),
        ("d = load_dataset('o/n')\nt = concatenate_datasets([d['train'], d['extra']])", "t", ["split='train'", "split='extra'"], False),
        ("d = load_dataset('o/n')", "d", ["split='train'"], True),
        ("d = load_dataset('o/n')", "d[os.environ['SPLIT']]", ["split='train'"], True),
        ("d = prepared(load_dataset('o/n', split='train'))\ne = load_dataset('o/n', split='test')", "d", ["split='train'"], True),
        ("if A:\n d = load_dataset('o/n')['train']\nelse:\n d = load_dataset('o/m')['train']", "d", ["'o/n'", "'o/m'"], True),
        ("try:\n d = load_from_disk('o/n')\nexcept OSError:\n d = load_dataset('o/m')", "d['train']", ["'o/n'", "'o/m'"], True),
        ("if A:\n d = load_dataset('o/n', split='train')\n t = d\nelse:\n d = 1\n", "t", ["'o/n'"], False),
    ],
)
def test_the_split_that_is_saved_is_the_one_that_is_trained(text: str, train: str, saved: list[str], asked: bool, tmp_path: Path) -> None:
    """Where that is not read, it says so."""
    draft = rows_of_script(tmp_path, text + "\n", train)
    commands = [one for one in draft.todo if "load_dataset" in one and one.startswith("save the rows")]
    assert len(commands) == len(saved) == len(draft.tree["data.files"])
    assert all(part in command for part, command in zip(saved, commands, strict=True))
    assert any("see that data.files are the rows it trains on" in one for one in draft.todo) is asked


@pytest.mark.parametrize(
    ("text", "train", "told"),
    [
        ("d = load_dataset('json', data_files='a.jsonl', split='train[:50%]')", "d", ["line 3 of the script: split='train[:50%]'"]),
        ("d = load_dataset('json', data_files='a.jsonl')\nd = d.filter(len)", "d['train']", ["line 4 of the script", ".filter(len)"]),
        (
            "d = load_dataset('o/n')['train'].shuffle(seed=1).select(range(9)).map(f)",
            "d",
            [".shuffle(seed=1)", ".select(range(9))", ".map(f)"],
        ),
        (
            "d = load_dataset('o/n', split='train')\nd = standardize_sharegpt(d)\nd = d.map(f)",
            "d",
            ["line 4 of the script", "standardize_sharegpt(d)", "line 5 of the script", ".map(f)"],
        ),
        ("d = load_dataset('o/n', split='train')", "d.take(5)", ["line 4 of the script", ".take(5)"]),
        (
            "d = load_dataset('o/n', split='train')\nfor p in m.parameters():\n    p.requires_grad = False",
            "d",
            ["line 5 of the script", "p.requires_grad = False"],
        ),
        ("d = load_dataset('o/n', split='train')\nm.requires_grad_(False)", "d", ["line 4 of the script", "m.requires_grad_(False)"]),
        ("d = load_dataset('o/n', split='train')\nt.chat_template = open('x').read()", "d", ["line 4 of the script", "t.chat_template"]),
        ("class T(SFTTrainer):\n  def compute_loss(self): ...\nd = load_dataset('o/n')['train']", "d", ["line 4", "compute_loss of T"]),
    ],
)
def test_what_a_script_does_on_the_way_to_training_is_named_as_not_carried(text: str, train: str, told: list[str], tmp_path: Path) -> None:
    draft = rows_of_script(tmp_path, text + "\n", train)
    todo = [one for one in draft.todo if "not carried over" in one]
    assert all(any(part in one for one in todo) for part in told), draft.todo
    steps = [row for row in draft.rows if row.fate == "not_carried" and (row.where.startswith("line") or "[" in str(row.value))]
    assert len(steps) == len(todo)


CUT = "d = load_dataset('json', data_files='a.jsonl', split='train')\n"


@pytest.mark.parametrize(
    ("text", "train", "held", "why"),
    [
        ("d = d.train_test_split(test_size=0.2, seed=1)", "d['train']", 0.2, "test_size"),
        ("d = d.shuffle(seed=1).train_test_split(0.1)\nt, e = d['train'], d['test']", "t", 0.1, "test_size"),
        ("d = standardize_sharegpt(d)\nd = d.train_test_split(0.05)", "d['train']", 0.05, "test_size"),
        ("d = d.train_test_split()['train'].map(f)", "d", 0.25, "test_size"),
        ("d = d.train_test_split(test_size=100)", "d['train']", 0.0, "100 rows there"),
        ("d = d.train_test_split(test_size=0.9)", "d['test']", 0.0, "the script trains on every row"),
        ("d = d.train_test_split(train_size=0.9)", "d['train']", 0.0, "the script trains on every row"),
        ("d = d.map(f)", "d", 0.0, "the script trains on every row"),
    ],
)
def test_rows_that_a_script_holds_out_are_held_out(text: str, train: str, held: float, why: str, tmp_path: Path) -> None:
    """A share that is not carried is a thing to do."""
    draft = rows_of_script(tmp_path, f"{CUT}{text}\n", train)
    assert draft.tree["data.held_out"] == held
    assert why in draft.reasons["data.held_out"]
    assert any("train_test_split" in one or "data.held_out" in one for one in draft.todo) is ("train_test_split" in text and not held)


@pytest.mark.parametrize(("text", "told"), [("d = d.shuffle(seed=1)", False), ("d = d.shuffle(seed=1).select(range(9))", True)])
def test_an_order_of_rows_is_to_be_seen_to_only_where_some_of_them_are_taken(text: str, told: bool, tmp_path: Path) -> None:
    draft = rows_of_script(tmp_path, f"{CUT}{text}\n", "d")
    assert any("shuffle" in one for one in draft.todo) is told
    assert any(".shuffle(seed=1)" in str(row.value) for row in draft.rows)


def test_evaluations_that_nothing_is_held_out_for_are_left_to_do_and_prompts_have_a_reason_of_their_own(tmp_path: Path) -> None:
    asks = f"{TORCHTUNE}\nrun_val_every_n_steps: 25\ndataset_val: {{_component_: torchtune.datasets.alpaca_cleaned_dataset}}\n"
    for text, told in ((TORCHTUNE, False), (asks, True)):
        draft = made_of(tmp_path, "torchtune.yaml", text)
        assert any("what evaluate.every asks" in one for one in draft.todo) is told
    assert {row.why for row in draft.rows if row.theirs == "dataset_val._component_"} == {
        "rows for evaluation stand in files of their own here: data.held_out_files"
    }
    text = TRAINS.replace("SFT", "DPO") + "DPOTrainer(args=DPOConfig(max_prompt_length=512, output_dir='o'))\n"
    [why] = [row.why for row in made_of(tmp_path, "s.py", text).rows if row.theirs == "max_prompt_length"]
    assert why == "prompt and answer have train.max_tokens together"


def test_keys_of_device_and_task_have_reasons_of_their_own(tmp_path: Path) -> None:
    text = TRAINS + "SFTTrainer(args=SFTConfig(use_cpu=True), peft_config=LoraConfig(r=8, task_type='CAUSAL_LM'))\n"
    why = {row.theirs: row.why for row in made_of(tmp_path, "s.py", text).rows}
    assert "the device is chosen by itself" in why["use_cpu"] and "train.objective" in why["task_type"]


TEMPLATES = [
    (AXOLOTL, "chat_template: chatml", "chatml"),
    (AXOLOTL, "chat_template: tokenizer_default", None),
    (AXOLOTL, "chat_template: jinja\nchat_template_jinja: '{{ messages[0].content }}'", "{{ messages[0].content }}"),
    (AXOLOTL, "chat_template: phi_35", None),
    (LLAMA_FACTORY.replace("template: qwen3\n", ""), "template: llama3", "llama3"),
    (LLAMA_FACTORY.replace("template: qwen3\n", ""), "template: gemma2", "gemma"),
    (LLAMA_FACTORY, "", None),
    (TRL, "chat_template_path: mine.jinja", "mine.jinja"),
    (TRL, "chat_template_path: Qwen/Qwen3-0.6B", {"of": "Qwen/Qwen3-0.6B"}),
]


@pytest.mark.parametrize(("text", "key", "ours"), TEMPLATES)
def test_the_chat_template_is_carried_or_said_not_to_be(text: str, key: str, ours: Any, tmp_path: Path) -> None:
    file = tmp_path / "theirs.yaml"
    file.write_text(f"{text}{key}\n")
    source, *_ = read_foreign(file)
    draft = convert(source)
    assert draft.tree.get("data.chat_template") == ours
    name = (key or "template: qwen3").rpartition("\n")[2].partition(":")[0]
    (row,) = [row for row in draft.rows if row.theirs == name]
    assert row.ours == "data.chat_template" and (row.fate == "carried") is (ours is not None)


@pytest.mark.parametrize(("name", "ours"), [("chatml", "chatml"), ("llama-3", "llama3"), ("llama-3.1", None), ("zephyr", None)])
def test_the_template_that_a_script_asks_for_by_name_is_carried(name: str, ours: str | None, tmp_path: Path) -> None:
    draft = rows_of_script(tmp_path, f"t = get_chat_template(t, chat_template='{name}')\nd = load_dataset('o/n')['train']\n", "d")
    assert draft.tree.get("data.chat_template") == ours
    assert any(row.ours == "data.chat_template" and (row.fate == "carried") is bool(ours) for row in draft.rows)


def test_a_plain_script_leaves_nothing_behind(tmp_path: Path) -> None:
    plain = "d = load_dataset('json', data_files='a.jsonl', split='train')\nnumbers = list(map(len, ['a']))\nd = d.with_format('torch')\n"
    assert not [one for one in rows_of_script(tmp_path, plain, "d").todo if "not carried over" in one]


def test_rows_that_are_left_out_are_told_with_their_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, out = tmp_path / "rows.jsonl", tmp_path / "mine.yaml"
    write_rows(rows, [*make_rows(30), *({"query_text": f"q {n}", "reply_text": f"an answer, {n}"} for n in range(12))])
    asked = ["init", "--model", "tiny", "--data", str(rows), "--out"]
    assert _main([*asked, str(out)]) == 0
    said = capsys.readouterr().out
    assert f"! to do: 12 of 42 rows are not trained on: missing_field 12; the first, {rows}:31: fields ['query_text', 'reply_text']" in said
    assert "--field" in said
    assert f"rows: {rows}: 42 rows = 30 kept + 0 repaired + 12 rejected (missing_field 12); read as alpaca" in said
    named = tmp_path / "named.yaml"
    assert _main([*asked, str(named), "--field", "query=query_text", "--field", "response=reply_text", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [(file["kept"], file["rejected"]) for file in answer["rows"]] == [(42, 0)]
    assert not answer["todo"] and load_config(named).data.fields == {"query": "query_text", "response": "reply_text"}


def test_repaired_rows_are_no_reason_for_rejected_ones_and_commands_name_files_as_a_shell_takes_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = make_rows(30)
    rows[3]["output"], rows[5]["output"] = "itâ€™s so, and no other way", ""
    write_rows(tmp_path / "my rows.jsonl", rows)
    assert _main(["init", "--model", "tiny", "--data", "my rows.jsonl", "--out", "my run.yaml"]) == 0
    said = capsys.readouterr().out
    assert "30 rows = 28 kept + 1 repaired + 1 rejected" in said
    assert "! to do: 1 of 30 rows are not trained on: empty_answer 1; the first, my rows.jsonl:6: " in said
    assert "next: holdfast doctor 'my run.yaml'; holdfast train 'my run.yaml'" in said
    write_rows(tmp_path / "other rows.jsonl", [{"was": f"q {n}", "wird": f"an answer, {n}"} for n in range(12)])
    assert _main(["init", "--model", "tiny", "--data", "other rows.jsonl", "--out", "other.yaml"]) == 2
    assert "holdfast data check 'other rows.jsonl'" in capsys.readouterr().err


def test_no_config_is_written_of_rows_of_which_none_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, out = tmp_path / "rows.jsonl", tmp_path / "mine.yaml"
    write_rows(rows, [{"was": f"q {n}", "wird": f"an answer, {n}"} for n in range(12)])
    asked = ["init", "--model", "tiny", "--data", str(rows), "--out", str(out)]
    empty = tmp_path / "head.csv"
    empty.write_text("instruction,output\n")
    assert _main(["init", "--model", "tiny", "--data", str(empty), "--out", str(out)]) == 2
    assert "head.csv can be trained on: there is none in it" in capsys.readouterr().err
    assert _main(asked) == 2
    assert "missing_field 12" in capsys.readouterr().err and not out.exists()
    assert _main([*asked, "--field", "question"]) == 2 and "write NAME=THEIRS" in capsys.readouterr().err
    assert _main([*asked, "--field", "question=was", "--field", "answer=wird"]) == 0
    capsys.readouterr()
    theirs = tmp_path / "theirs.yml"
    theirs.write_text(AXOLOTL)
    assert _main(["init", "--from", str(theirs), "--out", str(tmp_path / "o.yaml"), "--field", "question=was", "--json"]) in (0, 1)
    assert json.loads(capsys.readouterr().out)["values"]["data"]["fields"] == {"question": "was"}
