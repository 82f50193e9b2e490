"""Bad input gives one clear message, the right exit code and no traceback, and loses nothing."""

from __future__ import annotations

import bz2
import gzip
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
import zstandard

from conftest import events, fill, holdfast, lines, make_rows, start, wait_until, write_rows
from holdfast.base.errors import Stop
from holdfast.config.config import Config
from holdfast.config.foreign_keys import NO_KEY, OURS
from holdfast.config.load import load_config
from holdfast.config.problems import paths_of

Write = Callable[..., Path]


def refused(code: int, *arguments: object, says: str) -> str:
    """The command is refused with `code` and one message that says `says`."""
    done = holdfast(*arguments)
    assert done.returncode == code, done.stderr
    assert says in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_every_mistake_in_a_config_is_told_at_once(config_of: Write, tmp_path: Path) -> None:
    file = config_of(
        data={"files": ["nowhere.jsonl"]},
        adapter={"rank": 8},
        train={"lr": "fast", "schedule": "cosin", "effective_batch": 0},
    )
    said = refused(2, "train", file, says="5 problems in the config")
    for expected in (
        "data.files[0]: nowhere.jsonl: no such file",
        "adapter.rank: unknown key (value 8)",
        "train.lr: 'fast'",
        "train.schedule: 'cosin'",
        "train.effective_batch: 0",
    ):
        assert expected in said
    assert list(tmp_path.iterdir()) == [file], "nothing is left behind"


def test_a_file_that_is_named_twice(config_of: Write, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("")
    twice = ["rows.jsonl", "./rows.jsonl", "other.jsonl", "other.jsonl"]
    said = refused(2, "train", config_of(data={"files": twice}), says="data.files[1]: ./rows.jsonl is also in data.files[0]; to draw")
    assert said.count("no such file") == 2, "what is missing is told as that"
    both = config_of(data={"files": "rows.jsonl", "held_out_files": "rows.jsonl"})
    refused(2, "train", both, says="data.held_out_files[0]: rows.jsonl is also in data.files[0]; rows that are learned judge nothing")


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("train.max_token", "train.max_tokens"),
        ("train.rl", "train.lr"),
        ("data.file", "data.files"),
        ("models", "model"),
        ("train.learning_rate", "train.lr"),
        ("learning_rate", "train.lr"),
        ("max_steps", "train.steps"),
        ("lora_r", "adapter.r"),
        ("datasets", "data.files"),
    ],
)
def test_an_unknown_key_is_answered_with_the_nearest_valid_one(config_of: Write, key: str, near: str) -> None:
    refused(2, "train", config_of(), f"{key}=1", says=f"did you mean {near}?")


def test_other_trainers_names_are_answered_with_keys_that_exist() -> None:
    assert set(OURS.values()) <= set(paths_of(Config))
    assert not set(OURS) & set(NO_KEY)
    assert not (set(OURS) | set(NO_KEY)) & {path.split(".")[-1] for path in paths_of(Config)}, "a key of ours is never taken for another"


OF_LLAMA_FACTORY = """
model_name_or_path: Qwen/Qwen2.5-0.5B
stage: sft
do_train: true
finetuning_type: lora
lora_target: all
dataset: alpaca_en_demo
template: qwen
cutoff_len: 2048
per_device_train_batch_size: 2
gradient_accumulation_steps: 8
learning_rate: 1.0e-4
bf16: true
"""
OF_AXOLOTL = """
base_model: NousResearch/Llama-3.2-1B
load_in_8bit: true
adapter: lora
lora_r: 32
datasets: [{path: teknium/GPT4-LLM-Cleaned, type: alpaca}]
sequence_len: 2048
micro_batch_size: 2
gradient_accumulation_steps: 4
num_epochs: 1
wandb_project:
"""
OF_TRL = """
model_name_or_path: gpt2
dataset_name: trl-lib/Capybara
output_dir: out
num_train_epochs: 2
per_device_train_batch_size: 4
gradient_accumulation_steps: 4
"""


@pytest.mark.parametrize(
    ("text", "program", "says"),
    [
        (
            OF_LLAMA_FACTORY,
            "LLaMA-Factory",
            [
                "per_device_train_batch_size x gradient_accumulation_steps -> train.effective_batch: 16",
                "learning_rate: 0.0001 -> train.lr",
                "stage: train.objective: sft, dpo",
                "template: the chat template is the model's own; data.chat_template gives another",
                "do_train: `holdfast train` trains",
            ],
        ),
        (
            OF_AXOLOTL,
            "Axolotl",
            [
                "micro_batch_size x gradient_accumulation_steps -> train.effective_batch: 8",
                "adapter: adapter.type names the kind",
                "load_in_8bit: train.frozen holds the base model in nf4, fp4 or int8",
                "datasets -> data.files",
            ],
        ),
        (OF_TRL, "transformers or TRL", ["num_train_epochs: 2 -> train.epochs", "dataset_name: trl-lib/Capybara -> data.files"]),
    ],
)
def test_a_config_of_another_program_is_told_as_that_and_translated(tmp_path: Path, text: str, program: str, says: list[str]) -> None:
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(Stop) as stop:
        load_config(tmp_path / "c.yaml")
    assert f"this is a config of {program}, not of holdfast" in stop.value.message
    assert all(f"  - {line}" in stop.value.message for line in says), stop.value.message
    assert "unknown key" not in stop.value.message


@pytest.mark.parametrize("key", ["stage", "template", "do_train", "lora", "load_in_4bit", "optim", "deepspeed", "logging_steps"])
@pytest.mark.parametrize("section", ["", "train."])
def test_a_key_without_one_of_ours_is_given_none(config_of: Write, key: str, section: str) -> None:
    with pytest.raises(Stop) as stop:
        load_config(config_of(), [f"{section}{key}=x"])
    assert "unknown key" in stop.value.message and "did you mean" not in stop.value.message


@pytest.mark.parametrize("key", ["train.gradient_accumulation_steps", "micro_batch_size", "train.per_device_train_batch_size"])
def test_a_factor_of_the_batch_is_not_taken_for_the_product(config_of: Write, key: str) -> None:
    with pytest.raises(Stop, match=r"train\.effective_batch is the rows of a step, micro-batch times accumulation"):
        load_config(config_of(), [f"{key}=2"])


@pytest.mark.parametrize("key", ["zzz", "banana", "size", "strat"])
def test_a_key_that_is_like_none_is_not_taken_for_a_section(config_of: Write, key: str) -> None:
    with pytest.raises(Stop) as stop:
        load_config(config_of(), [f"{key}=1"])
    assert not any(f"did you mean {name}?" in stop.value.message for name in ("save", "data", "train", "evaluate", "run"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds nothing, a mapping of keys is needed"),
        ("- a\n- b\n", "holds a list"),
        ("just words\n", "holds text, a mapping"),
        ("model: [x\n", "not valid YAML"),
        ("train:\n  lr: 1e-4\n  lr: 3\n", "duplicate key train.lr, in lines 2 and 3"),
        ("data: {files: a}\nfaults: [{effect: kill, effect: hang}]\n", "duplicate key faults.0.effect, in lines 2 and 2"),
        ("\tmodel: x", "not valid YAML"),
    ],
)
def test_a_file_that_is_no_config(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    refused(2, "train", file, says=says)


def test_a_config_that_is_not_there_or_a_folder(tmp_path: Path) -> None:
    (tmp_path / "quickstart.yaml").write_text("model: x")
    refused(2, "train", tmp_path / "quikstart.yaml", says=f"did you mean {tmp_path}/quickstart.yaml?")
    refused(2, "train", tmp_path, says="is a folder")


@pytest.mark.parametrize(("key", "limit"), [("epochs", "1000000"), ("steps", "1000000000")])
def test_a_run_without_end_is_no_run(config_of: Write, key: str, limit: str) -> None:
    refused(2, "train", config_of(train={"steps": None}), f"train.{key}=1" + "0" * 300, says=limit)


@pytest.mark.parametrize("key", ["train.lr", "train.weight_decay", "train.epochs", "adapter.alpha", "run.hang_s"])
def test_an_infinite_number_is_no_number(config_of: Write, key: str) -> None:
    for text in ("inf", "1e400", ".nan"):
        refused(2, "train", config_of(), f"{key}={text}", says=f"{key}: ")


def test_a_section_or_list_of_the_wrong_kind_is_told_in_plain_words(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("model: tiny\ndata: rows.jsonl\ntrain: 3\n")
    said = refused(2, "train", file, says="data: 'rows.jsonl': a section of keys is needed")
    assert "train: 3: a section of keys is needed" in said
    file.write_text("model: tiny\ndata: {files: [], fields: [output]}\n")
    said = refused(2, "train", file, says="data.files: []: at least one is needed")
    assert "data.fields: ['output']: keys with values are needed" in said


def test_steps_and_epochs_together(config_of: Write) -> None:
    refused(2, "train", config_of(train={"epochs": 1}), says="give epochs or steps, not both")
    refused(2, "train", config_of(), "train.epochs=2", "train.steps=3", says="give epochs or steps, not both")


def test_an_override_of_steps_stands_instead_of_the_files_epochs(config_of: Write) -> None:
    from holdfast.config.load import load_config

    assert load_config(config_of(), ["train.epochs=2"]).train.steps is None


# ---- data files


def test_a_data_path_that_is_a_folder(config_of: Write, tmp_path: Path) -> None:
    refused(2, "train", config_of(data={"files": str(tmp_path)}), says="is a folder; name the files in it")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty (0 bytes)"),
        (b"\n\n  \n", "holds no row"),
        (b"{}\x00\x01\x02", "all 1 rejected (parse_error 1)"),
        (b"PAR1abcdef", "all 1 rejected (damaged_file 1)"),
        (b"PK\x03\x04abcdef", "the file is a zip archive"),
        (b"\x1f\x8b\x08abc", "all 1 rejected (damaged_file 1)"),
        ('{"a": 1}'.encode("utf-16"), "all 1 rejected (missing_field 1)"),
    ],
    ids=["empty", "blank", "binary", "parquet", "zip", "gzip", "utf-16"],
)
def test_a_data_file_that_holds_no_rows(config_of: Write, tmp_path: Path, content: bytes, says: str) -> None:
    file = tmp_path / "data.jsonl"
    file.write_bytes(content)
    refused(1, "train", config_of(data={"files": str(file)}), "--run", tmp_path / "run", says=says)
    assert file.read_bytes() == content


def trained(config: Path, run: Path) -> dict[str, int]:
    done = holdfast("train", config, "--run", run, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads((run / "data.json").read_text())


@pytest.mark.parametrize("ending", [b"\r\n", b"\n"], ids=["CRLF", "LF"])
def test_a_byte_order_mark_crlf_and_a_truncated_last_line(config_of: Write, tmp_path: Path, ending: bytes) -> None:
    file = tmp_path / "data.jsonl"
    rows = [json.dumps(row).encode() for row in make_rows(30)]
    file.write_bytes(b"\xef\xbb\xbf" + ending.join(rows) + ending + rows[0][:25])
    data = trained(config_of(data={"files": str(file)}, train={"steps": 1}), tmp_path / "run")
    assert (data["rows"], data["kept"], data["mended"], data["rejected"]) == (31, 30, 0, 1)
    reject = lines(tmp_path / "run" / "rejects.jsonl")[0]
    assert (reject["line"], reject["reason"], reject["raw"]) == (31, "parse_error", rows[0][:25].decode())
    assert "cut off" in reject["detail"]


def test_one_percent_of_malformed_rows_is_kept_aside_with_reasons(config_of: Write, tmp_path: Path) -> None:
    bad = {
        20: (b"{'instruction': 'x'}", "parse_error"),
        40: (b'{"instruction": "x"}', "missing_field"),
        60: (b'{"instruction": "x", "output": ""}', "empty_answer"),
        80: (b'{"instruction": "x", "output": 7}', "wrong_type"),
        100: (b"[1, 2]", "not_an_object"),
        120: (b'{"instruction": "x", "output": "\xff\xfe"}', "bad_encoding"),
        140: (json.dumps({"instruction": "x" * 300, "output": "y"}).encode(), "all_labels_masked"),
    }
    rows = [json.dumps(row).encode() for row in make_rows(700)]
    for line, (raw, _) in bad.items():
        rows[line - 1] = raw
    file = tmp_path / "data.jsonl"
    file.write_bytes(b"\n".join(rows) + b"\n\n")
    data = trained(config_of(data={"files": str(file)}, train={"steps": 1}), tmp_path / "run")
    assert data["rows"] == data["kept"] + data["mended"] + data["rejected"] == 700
    rejects = lines(tmp_path / "run" / "rejects.jsonl")
    assert {reject["line"]: reject["reason"] for reject in rejects} == {line: reason for line, (_, reason) in bad.items()}
    assert all(reject["file"] == str(file) for reject in rejects)
    import base64

    raws = [base64.b64decode(reject["raw_base64"]) if "raw_base64" in reject else reject["raw"].encode() for reject in rejects]
    assert raws == [raw for raw, _ in bad.values()]


def test_a_field_that_is_none_of_ours_is_refused(config_of: Write, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", [{"Frage": row["instruction"], "Befehl": row["output"]} for row in make_rows(20)])
    said = holdfast("data", "check", rows).stdout
    assert "fields ['Befehl', 'Frage'] fit no known layout" in said and "--field question=Frage --field answer=Befehl" in said
    turned = {"files": str(rows), "fields": {"Befehl": "output", "Frage": "instruction"}}
    says = "data.fields: Befehl is no field that rows are read from\n  -> ours comes first: output, then Befehl"
    refused(2, "train", config_of(data=turned), "--run", tmp_path / "run", says=says)
    refused(
        2, "data", "check", rows, "--field", "reply=Befehl", says="--field: reply is no field that rows are read from\n  -> one of answer"
    )
    right = holdfast("data", "check", rows, "--field", "output=Befehl", "--field", "instruction=Frage")
    assert right.returncode == 0, right.stderr


def test_no_row_left(config_of: Write, tmp_path: Path) -> None:
    file = write_rows(tmp_path / "data.jsonl", [{"question": "a", "reply": "b"}] * 3)
    said = refused(
        1, "train", config_of(data={"files": str(file)}), "--run", tmp_path / "run", says="no row can be trained on: all 3 rejected"
    )
    assert "missing_field 3" in said
    assert len(lines(tmp_path / "run" / "rejects.jsonl")) == 3


# ---- models


@pytest.fixture
def model(assets: SimpleNamespace, tmp_path: Path) -> Path:
    shutil.copytree(assets.model, tmp_path / "model")
    return tmp_path / "model"


def test_a_model_folder_that_is_missing(config_of: Write, tmp_path: Path) -> None:
    refused(2, "train", config_of(model=str(tmp_path / "nowhere")), says="no such folder")


def test_a_model_without_a_tokenizer(config_of: Write, model: Path, tmp_path: Path) -> None:
    (model / "tokenizer.json").unlink()
    refused(1, "train", config_of(model=str(model)), "--run", tmp_path / "run", says="has no tokenizer.json")


def test_a_model_without_a_config(config_of: Write, model: Path, tmp_path: Path) -> None:
    (model / "config.json").write_text("{")
    refused(1, "train", config_of(model=str(model)), "--run", tmp_path / "run", says="config.json is not a JSON object")


def test_a_model_with_damaged_weights(config_of: Write, model: Path, tmp_path: Path) -> None:
    file = model / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-100])
    refused(1, "train", config_of(model=str(model)), "--run", tmp_path / "a", says="is damaged: it has")
    file.write_bytes(b"\xff" * 8 + whole[8:])
    refused(1, "train", config_of(model=str(model)), "--run", tmp_path / "b", says="is damaged")
    file.unlink()
    refused(1, "train", config_of(model=str(model)), "--run", tmp_path / "c", says="holds no model.safetensors")


def test_a_model_whose_weights_were_not_fetched(config_of: Write, model: Path, tmp_path: Path) -> None:
    (model / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")
    refused(
        1, "train", config_of(model=str(model)), "--run", tmp_path / "run", says="is a pointer of Git LFS and not the weights\n  -> fetch"
    )


def test_an_adapter_in_place_of_a_model(config_of: Write, tmp_path: Path) -> None:
    (tmp_path / "done" / "adapter").mkdir(parents=True)
    (tmp_path / "done" / "adapter" / "adapter_config.json").write_text('{"base_model_name_or_path": "the/base"}')
    for folder in (tmp_path / "done", tmp_path / "done" / "adapter"):
        said = refused(1, "train", config_of(model=str(folder)), "--run", tmp_path / "run", says=f"{folder} holds an adapter and no model")
        assert f"model: the/base, adapter.start: {folder}" in said


def test_a_tokenizer_of_another_model(config_of: Write, model: Path, tmp_path: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"vocab_size": 50}))
    refused(1, "train", config_of(model=str(model)), "--run", tmp_path / "run", says="the model's embedding has 50")


# ---- words


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["export", "runs/a", "--to", "guf", "--out", "x"], "gguf-adapter\n  -> did you mean gguf?"),
        (["export", "runs/a", "--to", "onnx", "--out", "x"], "--to onnx: no such value; it is one of adapter, merged, gguf, gguf-adapter"),
        (["serve", "runs/a", "--engine", "vlm"], "--engine vlm: no such value"),
        (["trian", "c.yaml"], "there is no command 'trian'\n  -> did you mean train?"),
        (["train"], "required: CONFIG\n  -> for example: holdfast train examples/quickstart.yaml"),
        (["train", "c.yaml", "--extnd"], "unrecognized arguments: --extnd\n  -> did you mean --extend?"),
        (["train", "c.yaml", "--set", "train.lr=1"], "settings are given without dashes, as in train.lr=1e-4; `holdfast train --help`"),
        (["train", "c.yaml", "--learning_rate", "1"], "settings are given without dashes, as in train.lr=1; "),
        (
            ["train", "c.yaml", "--steps", "3"],
            "unrecognized arguments: --steps 3\n  -> settings are given without dashes, as in train.steps=3; ",
        ),
        (["resume", "runs/x"], "an unfinished run goes on by itself: rerun `holdfast train CONFIG`"),
        (["data", "mak"], "there is no command 'mak'\n  -> did you mean make? `holdfast data --help`"),
    ],
    ids=[
        "choice of an option",
        "choice that is like no other",
        "another choice",
        "verb",
        "nothing",
        "option",
        "a setting as an option",
        "a setting as an option of its own",
        "one of ours",
        "resume",
        "verb of a verb",
    ],
)
def test_a_misspelt_word_is_told_with_the_nearest_one(words: list[str], says: str) -> None:
    done = holdfast(*words)
    assert done.returncode == 2 and says in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        (
            "tabs.yaml",
            "model: tiny\ndata:\n\tfiles: rows.jsonl\n",
            "line 3 begins with a tab, and YAML allows none there: indent with spaces",
        ),
        ("less.yaml", "data:\n  files: rows.jsonl\n held_out: 0\n", "line 3 is indented otherwise than those it stands among: held_out: 0"),
        ("one.yaml", "# mine\nmodel:tiny\n", "line 2: a space is missing behind `model:`"),
        ("joined.yaml", "model:tiny\n\n# rows\ndata: {files: rows.jsonl}\n", "line 1: a space is missing behind `model:`"),
        ("inner.yaml", "data:\n  files:rows.jsonl\n  held_out: 0\n", "line 2: a space is missing behind `files:`"),
        ("deeper.yaml", "model: tiny\ntrain:\n  lr:1e-4\n  # more\n  epochs: 1\n", "line 3: a space is missing behind `lr:`"),
        ("alone.yaml", "model: tiny\ndata:\n  files:rows.jsonl\n", "write `data: {files: rows.jsonl}`"),
        ("twice.yaml", "model: a: b\n", "line 1 has a second colon in its value: write the value in quotes"),
        ("open.yaml", "model: [tiny\ndata: x\n", "but got ':' in line 2, column 5"),
        ("rows.jsonl", '{"text": "a"}\n{"text": "b"}\n', "rows.jsonl is a file of rows; a config is a YAML file that names it"),
    ],
)
def test_what_is_no_config_is_told_by_what_it_is(tmp_path: Path, name: str, text: str, says: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(Stop) as stop:
        load_config(tmp_path / name)
    assert says in stop.value.message and "unicode string" not in stop.value.message


def test_settings_may_stand_behind_an_option(config_of: Write, tmp_path: Path) -> None:
    file, run = config_of(), tmp_path / "run"
    said = refused(
        2, "train", file, "train.lr=-1", "--run", run, "adapter.r=0", "--quiet", "train.seed=-1", says="3 problems in the config"
    )
    assert all(key in said for key in ("train.lr: -1", "adapter.r: 0", "train.seed: -1"))
    refused(2, "status", run, "extra", says="unrecognized arguments: extra")


# ---- disks and folders


def test_a_disk_that_is_full_from_the_start(config_of: Write, small_disk: Path) -> None:
    fill(small_disk)
    said = refused(1, "train", config_of(), "--run", small_disk / "run", says="")
    assert "the disk of" in said or "No space left" in said


def test_a_disk_that_fills_up_in_the_middle_loses_nothing(config_of: Write, small_disk: Path, tmp_path: Path) -> None:
    config = config_of(train={"steps": 150, "effective_batch": 4}, save={"every": 10})
    run = small_disk / "run"
    child = start("train", config, "--run", run)
    wait_until(lambda: (run / "steps.jsonl").exists() and len(lines(run / "steps.jsonl")) > 15)
    filler = fill(small_disk)
    output, _ = child.communicate()
    assert child.returncode == 3, output
    assert "full" in output and "resume" in output
    assert "Traceback" not in output
    filler.unlink()
    done = holdfast("train", config, "--run", run, "--json")
    assert done.returncode == 0, done.stderr
    whole = holdfast("train", config, "--run", tmp_path / "whole", "--json")
    assert json.loads(done.stdout)["artifact_sha256"] == json.loads(whole.stdout)["artifact_sha256"]
    assert [row["step"] for row in lines(run / "steps.jsonl")] == list(range(1, 151))


def test_a_disk_that_cannot_be_written(config_of: Write, small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    refused(1, "train", config_of(), "--run", small_disk / "run", says="cannot be written: Read-only file system")


def test_a_snapshot_folder_without_room_is_an_event_and_the_run_goes_on(config_of: Write, small_disk: Path, tmp_path: Path) -> None:
    fill(small_disk)
    done = holdfast("train", config_of(save={"snapshot_dir": str(small_disk)}), "--run", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert events(tmp_path / "run", "snapshot_place_refused")[0]["reason"] == "No space left on device"


def test_a_run_folder_of_another_config_is_refused_with_the_difference(config_of: Write, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", make_rows(40))
    config, run = config_of(train={"steps": 2}, data={"files": [str(rows)]}), tmp_path / "run"
    assert holdfast("train", config, "--run", run).returncode == 0
    said = refused(2, "train", config, "train.lr=5e-4", "adapter.r=2", "--run", run, says="belongs to another config")
    assert "train.lr: 0.001 -> 0.0005" in said
    assert "adapter.r: 4 -> 2" in said and "--extend" not in said
    refused(2, "train", config, "train.steps=3", "--run", run, says="add --extend to train this run on")
    assert "written after this run began" not in holdfast("train", config, "--run", run).stdout
    os.utime(rows, (time.time() + 3600,) * 2)
    assert f"{rows}: written after this run began; the run has its own copy" in holdfast("train", config, "--run", run).stdout


def test_a_run_folder_that_is_held_says_by_whom(config_of: Write, tmp_path: Path) -> None:
    config, run = config_of(train={"steps": 2000}), tmp_path / "run"
    holder = start("train", config, "--run", run)
    wait_until(lambda: (run / "config.yaml").exists())
    refused(1, "train", config, "--run", run, says=f"is held by process {holder.pid}")
    holder.send_signal(15)
    assert holder.wait() == 130
    holder.communicate()


def test_a_folder_that_is_no_run_folder_is_left_alone(config_of: Write, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("mine")
    refused(2, "train", config_of(), "--run", tmp_path / "mine", says="is not empty and is not a run folder")
    assert [entry.name for entry in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def removed(folder: Path) -> bool:
    """Remove a folder that is being written into; whether it is gone: what was written meanwhile leaves one that is not empty."""
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


@pytest.mark.parametrize("how", ["at one instant", "once it was followed", "file by file"])
def test_a_run_folder_that_is_removed_in_the_middle_ends_the_run_clearly(config_of: Write, tmp_path: Path, how: str) -> None:
    config, run = config_of(train={"steps": 5000}), tmp_path / "run"
    child = start("train", config, "--run", run)
    wait_until(lambda: (run / "steps.jsonl").exists() and len(lines(run / "steps.jsonl")) > 3)
    trainer = json.loads((run / "attempts" / "001" / "rank0.json").read_text())["identity"]["pid"]
    if how == "file by file":
        wait_until(lambda: not subprocess.run(["rm", "-rf", run], capture_output=True).returncode)
    else:  # the trainer goes on writing into what it had opened
        run.rename(tmp_path / "gone")
        if how == "once it was followed":
            wait_until(run.is_symlink)
        wait_until(lambda: removed(tmp_path / "gone"))
    output, _ = child.communicate()
    assert child.returncode == 1, output
    assert f"{run} was removed while the run was going" in output and "Traceback" not in output
    wait_until(lambda: not Path(f"/proc/{trainer}").exists())
    assert not os.path.lexists(run), "nothing makes it again"


# ---- other verbs


def test_trial_asks_for_what_it_needs(config_of: Write, tmp_path: Path) -> None:
    refused(2, "trial", tmp_path, "--step", 1, says="is not a run folder")
    config, run = config_of(train={"steps": 2}), tmp_path / "run"
    assert holdfast("train", config, "--run", run).returncode == 0
    refused(2, "trial", run, "--step", 9, says="the run has steps 1 to 2")
    refused(2, "trial", run, "--step", 1, "--set", "attention=flash", says="attention: input should be 'eager' or 'sdpa'")
    refused(2, "trial", run, "--step", 1, "--samples", "a", says="numbers are needed")


@pytest.mark.parametrize("verb", ["train", "trial", "report", "schema"])
def test_the_help_of_every_verb_shows_an_example(verb: str) -> None:
    done = holdfast(verb, "--help")
    assert done.returncode == 0
    assert "example:\n  holdfast" in done.stdout


def test_a_fault_file_with_a_mistake(config_of: Write, tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    wrong = {"attenton": "eager", "dtype": "fp8"}
    file.write_text(yaml.safe_dump([{"effect": "explode", "when": {"stepp": 1, "setting": wrong}}]))
    said = refused(2, "train", config_of(), "--faults", file, "--run", tmp_path / "run", says="faults.0.effect: 'explode'")
    assert "faults.0.when.stepp: unknown key" in said
    assert "when.setting: attenton: no such setting; did you mean attention?; dtype: input should be 'fp32', 'bf16' or 'fp16'" in said


def test_a_run_folder_in_place_of_a_config_is_told_how_to_go_on(config_of: Callable[..., Path], tmp_path: Path) -> None:
    run = tmp_path / "made"
    assert holdfast("train", config_of(train={"steps": 1}), "--run", run).returncode == 0
    done = holdfast("train", run)
    assert done.returncode == 2
    assert f"holdfast train {run}/config.yaml --run {run}" in done.stderr
    assert holdfast("train", run / "config.yaml", "--run", run).returncode == 0, "the hint has to work"
    empty = holdfast("train", run / "checkpoints")
    assert empty.returncode == 2 and "there is no YAML file in it" in empty.stderr
    foreign = holdfast("trial", run, "--step", 1, "--samples", "99999")
    assert foreign.returncode == 2 and "99999 not in step 1" in foreign.stderr


@pytest.mark.parametrize("content", ["", "\n \n"], ids=["empty", "blank"])
def test_of_a_log_without_a_line_the_ending_is_asked_for(tmp_path: Path, content: str) -> None:
    log = tmp_path / "train.log"
    log.write_text(content)
    alone = json.loads(holdfast("diagnose", log, "--json").stdout)
    assert alone["cause"] == "unknown" and "the log is empty" in alone["clues"][0]["text"] and "--exit-code" in alone["clues"][0]["text"]
    killed = holdfast("diagnose", log, "--exit-code", "137", "--json")
    assert killed.returncode == 0 and json.loads(killed.stdout)["cause"] == "host_out_of_memory"


@pytest.mark.parametrize("kind", ["gzip", "torn gzip", "bzip2", "zstd", "utf-16", "pipe"])
def test_a_log_is_read_as_it_was_put_away(tmp_path: Path, kind: str) -> None:
    text = "step 1 loss 2.0\n" * 2000 + "RuntimeError: CUDA error: an illegal memory access was encountered\n"
    data = (text + "  at the end\n" * 90_000 if kind == "torn gzip" else text).encode()
    packers = {"gzip": gzip.compress, "torn gzip": gzip.compress, "bzip2": bz2.compress, "zstd": zstandard.compress}
    log = tmp_path / "old.log"
    log.write_bytes(text.encode("utf-16-le") if kind == "utf-16" else packers.get(kind, bytes)(data))
    if kind == "torn gzip":
        log.write_bytes(log.read_bytes()[:-300])
    if kind == "pipe":  # one that a shell names
        command = f"{shlex.quote(sys.executable)} -m holdfast diagnose <(cat {shlex.quote(str(log))}) --json"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    else:
        done = holdfast("diagnose", log, "--json")
    found = json.loads(done.stdout)
    assert (found["cause"], found["clues"][0]["line"]) == ("gpu_kernel_fault", 2001), done.stderr


def test_a_reason_of_a_row_is_a_card_as_it_is_written() -> None:
    done = holdfast("explain", "answer_equals_prompt")
    assert done.returncode == 0 and "(answer-equals-prompt" in done.stdout, done.stderr
