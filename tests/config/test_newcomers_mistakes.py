"""What newcomers write by mistake, each answered with the fact, the place and what to write."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.base.errors import Stop
from holdfast.base_model.folder import read_model
from holdfast.book import cards_of, shelves
from holdfast.cli.commands.check import _next
from holdfast.cli.commands.explain import EVERYDAY
from holdfast.cli.main import main
from holdfast.config.config import Config
from holdfast.config.load import load_config
from holdfast.config.yaml_tree import value_of

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
    ({"train": {"lr": "0,0002"}}, "train.lr", "write 0.0002 (line 5)"),
    ({"data": {"files": "rows.jsonl", "held_out": "10%"}}, "data.held_out", "write 0.1 (line 3)"),
    ({"train": {"max_tokens": "2k"}}, "train.max_tokens", "write 2000"),
    ({"train": {"max_tokens": "1e3"}}, "train.max_tokens", "write 1000 (line 5)"),
    ({"train": {"max_tokens": 64.5}}, "train.max_tokens", "a valid integer; write 64 (line 5)"),
    ({"train": {"max_tokens": 10**10}}, "train.max_tokens", "less than or equal to 10000000 (line 5)"),
    ({"train": {"lr": 1e30}}, "train.lr", "less than or equal to 1000"),
    ({"train": {"steps": True}}, "train.steps", "is no number"),
    ({"train": {"ranks": True}}, "train.ranks", "is no number"),
    ({"train": {"ranks": 0}}, "train.ranks: 0: input should be 'auto' or greater than or equal to 1 (line 5)", "auto or integer from 1"),
    ({"train": {"precision": "bf61"}}, "train.precision", "did you mean bf16?"),
    ({"train..lr": 1e-3}, "train..lr", "did you mean train.lr?"),
    ({"train": {"": {"lr": 1e-3}}}, "train.", "did you mean train.lr?"),
    ({".train": {"lr": 1e-3}}, ".train", "did you mean train.lr?"),
    ({"train.until..loss": 1}, "train.until..loss", "did you mean train.until"),
    ({"Train": {"lr": 1e-3}}, "Train", "did you mean train.lr?"),
    ({"data/held_out": 0.1}, "data/held_out", "did you mean data.held_out?"),
    ({"report_to": "wandb"}, "report_to", "run.track"),
    ({"data_files": "rows.jsonl"}, "data_files", "did you mean data.files?"),
    ({"train_lr": 1e-4}, "train_lr", "did you mean train.lr?"),
    ({"train": {"lr": 0.1, 2: None}}, "train.2", "numbers there have a point"),
    ({"train": {"memory_limit": 8}}, "train.memory_limit: 8: 8 bytes hold no model", "did you mean 8GiB?"),
    ({"train": {"memory_limit": "16"}}, "train.memory_limit", "did you mean 16GiB?"),
    ({"train": {"memory_limit": 7.5}}, "train.memory_limit", "did you mean 7.5GiB?"),
    ({"train": {"memory_limit": 24000}}, "train.memory_limit", "did you mean 24000MiB?"),
    ({"train": {"memory_limit": "8G"}}, "train.memory_limit", "did you mean 8GiB?"),
    ({"train": {"memory_limit": "8KiB"}}, "train.memory_limit", "8,192 bytes hold no model"),
    ({"run": {"name": "my run"}}, "run.name", "write my-run (line 5)"),
    ({"run": {"name": "../other"}}, "run.name", "another place is --run DIR"),
    ({"run": {"notify": {"sendmail": "me at home"}}}, "run.notify.sendmail", "one address, such as"),
    ({"evaluate": {"every": "epoch"}}, "evaluate.every", "one epoch is the training rows divided by train.effective_batch"),
    ({"save": {"every": "epoch"}}, "save.every", "leave it out and the run chooses (line"),
    ({"train": {"frozen": "int4"}}, "train.frozen", "write nf4 (line 5)"),
    ({"train": {"objective": "grpo"}}, "train.objective", "holdfast run -- python train.py"),
    ({"train": {"warmup": "10 steps"}}, "train.warmup", "write 10 (line 5)"),
    ({"data": {"files": "rows.jsonl", "format": "sharegpt"}}, "data.format", "write chat (line 3)"),
    ({"train": {"memory_limit": 0}}, "train.memory_limit", "write for example 8GiB"),
    ({"train": {"warmup": "500%"}}, "train.warmup", "; a share is below 1, as 0.05 for 5% (line 5)"),
    ({"train": {"warmup": "5%"}}, "train.warmup", "write 0.05 (line 5)"),
    ({"evaluate": {"every": "10%"}}, "evaluate.every", "; it is a count, and no share (line"),
    ({"train": {"max_tokens": "1,024"}}, "train.max_tokens", "write 1024 (line 5)"),
    ({"run": {"name": date(2026, 11, 29)}}, "run.name: 2026-11-29", "; write it in quotes (line 5)"),
    ({"run": {"name": 7}}, "run.name: 7", "; write it in quotes (line 5)"),
    ({"evaluate": {"every": 0.5}}, "evaluate.every: 0.5", "a valid integer; it is a count, and no share (line"),
    ({"faults": [{"kind": "kill"}]}, "faults.0.kind", "unknown key (value 'kill') (line"),
    ({"train": {"r": 16}}, "train.r", "did you mean adapter.r?"),
    ({"train": {"held_out": 0.2}}, "train.held_out", "did you mean data.held_out?"),
    ({"train": {"dropout": 0.1}}, "train.dropout", "did you mean adapter.dropout?"),
    ({"adapter": {"lr": 1e-4}}, "adapter.lr", "did you mean train.lr?"),
]


@pytest.mark.parametrize(("more", "place", "write"), MISTAKES, ids=[f"{place}-{at}" for at, (_, place, _) in enumerate(MISTAKES)])
def test_a_mistake_in_a_config_is_answered(tmp_path: Path, more: dict[str, Any], place: str, write: str) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(BASE | more))
    with pytest.raises(Stop) as stop:
        load_config(tmp_path / "a.yaml")
    assert stop.value.code == 2
    assert f"- {place}" in stop.value.message
    assert "^[" not in stop.value.message and "did you mean orpo" not in stop.value.message
    assert write in f"{stop.value}"


@pytest.mark.parametrize(
    ("more", "offered", "others"),
    [
        ({"colour": 1}, "did you mean one of task, model, data, adapter, train", ("table", "network")),
        ({"hidden": [32]}, "did you mean one of task, model", ("table", "network")),
        ({"task": "tabular", "table": {"target": "y"}, "colour": 1}, "did you mean one of task, data, train", ("model", "adapter")),
        ({"task": "tabular", "table": {"target": "y"}, "train": {"dropout": 0.1}}, "did you mean network.dropout?", ("adapter",)),
    ],
)
def test_keys_of_another_task_are_not_offered(tmp_path: Path, more: dict[str, Any], offered: str, others: tuple[str, ...]) -> None:
    (tmp_path / "a.yaml").write_text(yaml.safe_dump((BASE if "task" not in more else {"data": BASE["data"]}) | more))
    with pytest.raises(Stop) as stop:
        load_config(tmp_path / "a.yaml", need_rows=False)
    (line,) = [one for one in stop.value.message.splitlines() if "unknown key" in one]
    assert offered in line and not [word for word in others if f" {word}" in line.partition("did you mean")[2]]


def test_a_section_that_is_none_is_told_once_whatever_is_set_in_it(tmp_path: Path) -> None:
    """`holdfast learn` sets keys of its own on the config that its policy names."""
    (tmp_path / "a.yaml").write_text("model: tiny\ndata: rows.jsonl\n")
    with pytest.raises(Stop, match=r"2 problems in the config\n  - override 'model.x=1': model is not a section\n  - data: ") as stop:
        load_config(tmp_path / "a.yaml", ["data.files=[a]", "model.x=1", "data.held_out=0"], need_rows=False)
    assert "override 'data" not in stop.value.message


def test_an_override_with_spaces_is_one_problem(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(BASE))
    with pytest.raises(Stop, match=r"1 problem in the config\n  - override 'train.lr = 1e-4': write it without spaces, train.lr=1e-4\n"):
        load_config(tmp_path / "a.yaml", ["train.lr", "=", "1e-4"], need_rows=False)


def test_the_embedded_model_is_named_in_small_letters() -> None:
    with pytest.raises(Stop, match="no model of that name comes with holdfast") as stop:
        read_model("Tiny")
    assert stop.value.hint == "did you mean tiny?"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["explain", "memory"], "gpu-oom-allocator"),
        (["explain", "oom"], "memory"),
        (["explain", "HIPBLAS_STATUS_INTERNAL_ERROR"], "what helps"),
        (["explain", "my run hangs"], "hang-waiting"),
        (["explain", "my", "loss", "is", "nan"], "nonfinite-detected"),
        (["explain", "rows of one batch"], "data-ragged"),
    ],
)
def test_explain_takes_words_and_lines(capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    assert main(words) == 0
    assert said in capsys.readouterr().out


def test_explain_offers_a_word_that_cards_have(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "grdient"]) == 2
    assert "did you mean gradient? `holdfast explain gradient`" in capsys.readouterr().err


@pytest.mark.parametrize(("there", "said"), [("chosen", "--field completion=chosen"), ("rejected", "")])
def test_half_a_pair_is_told_as_one(capsys: pytest.CaptureFixture[str], tmp_path: Path, there: str, said: str) -> None:
    lacking = {"chosen": "rejected", "rejected": "chosen"}[there]
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "Name a tree", there: "birch"}) + "\n")
    assert main(["data", "check", str(tmp_path / "rows.jsonl")]) == 1
    told = capsys.readouterr().out
    assert f"{there} is there, and {lacking} is missing: a pair has both" in told
    assert said in told and f"completion={lacking}" not in told and "completion=rejected" not in told


FIRST = {
    "memory": "gpu-oom-allocator",
    "CUDA out of memory": "gpu-oom-allocator",
    "nan": "nonfinite-detected",
    "slow": "slower",
    "hang": "hang-waiting",
    "killed": "host-oom-sigkill",
    "loss is zero": "no-signal-zero-from-start",
    "no gpu": "torch-without-gpu",
}


@pytest.mark.parametrize("words", FIRST)
def test_explain_puts_the_obvious_card_first_in_words(capsys: pytest.CaptureFixture[str], words: str) -> None:
    assert main(["explain", words]) == 0
    said = capsys.readouterr().out
    assert f"({FIRST[words]}" in said.splitlines()[1]
    assert "what helps" in said
    assert not any(sign in said for sign in ("(?", "\\b", "\\d", "[^", "One of:", "reading:"))


def test_every_everyday_word_leads_to_cards_that_are_there() -> None:
    there = {card for shelf in shelves() for card in cards_of(shelf)}
    assert not {word: gone for word, cards in EVERYDAY.items() if (gone := set(cards) - there)}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["data", "clean", "r.jsonl", "--out", "o.jsonl", "--drop", "duplicat"], "did you mean duplicate?"),
        (["plan", "a.yaml", "--card", "MI51"], "did you mean MI"),
        (["init", "--model", "tiny", "--data", "r.jsonl", "--model", "nope"], "--model is given twice: tiny and nope"),
        (["run", "--hang-s", "nan", "--", "true"], "--hang-s nan: not a number of seconds above 0"),
        (["run", "--notify", "empty.yaml", "--", "true"], "does not say whom to tell: a section of keys is needed\n"),
        (["learn", "empty.yaml"], "holds nothing, a mapping of keys is needed\n  -> docs/how-to/learn.md shows one"),
        (["drill", "--faults", "empty.yaml"], "a mapping of keys is needed\n  -> docs/reference/faults.md shows the language"),
        (["plan", "a.yaml", "data..held_out=0.2"], "- data.: unknown key (value {'held_out': 0.2}); did you mean data.held_out?\n"),
        (
            ["chat", "nope"],
            "is not a run folder (there is no such folder)\n  -> runs in runs/: first, other; `holdfast status` says how each is",
        ),
        (["report", "runs/firts"], "-> did you mean runs/first? runs in runs/: first, other; `holdfast status` says how each is\n"),
        (["bundle", "runs/firts"], "-> did you mean runs/first? runs in runs/: first, other; `holdfast status` says how each is\n"),
        (["stop", "first"], "-> do you mean runs/first? runs in runs/: first, other; "),
        (
            ["serve", "runs/nope"],
            "(there is no such folder)\n  -> runs in runs/: first, other; `holdfast status` says how each is; a folder that PEFT",
        ),
        (["verify", "runs/firts"], "-> did you mean runs/first? "),
        (["export", "runs/firts", "--to", "merged", "--out", "x"], "-> did you mean runs/first? "),
        (["serve"], "required: RUN|ADAPTER\n  -> for example: holdfast serve runs/first "),
        (["train"], "required: CONFIG\n  -> for example: holdfast train "),
        (["explain", ""], "no card is named: the name is empty\n  -> `holdfast explain` lists all cards"),
        (["explain", "  "], "no card is named: the name is empty\n"),
        (["plan", "a.yaml", "model=tinny"], "no model of that name comes with holdfast\n  -> did you mean tiny?"),
        (["compare", "a.yaml", "nope"], "a.yaml is not a run folder (it is a file)"),
        (["plan", "a.yaml", "--memory", "8GiB", "--memory=9GiB"], "--memory is given twice"),
    ],
)
def test_a_wrong_word_is_answered_with_the_near_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    (tmp_path / "empty.yaml").touch()
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(BASE))
    for name in ("first", "other"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "run.json").touch()
    assert main(words) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "line", "said"),
    [
        ({"train": {"seed": 1, "lr": "fast"}}, 5, "docs/reference/config.md#train says of train.lr: number over 0 to 1,000; 0.0002 when"),
        ({"run": {"track": ["wandb", "wandbb"]}}, 7, "docs/reference/config.md#run says of run.track: list of names"),
        ({"train": {"until": {"loss": "low"}}}, 6, "docs/reference/config.md#train says of train.until.loss: number over 0"),
        ({"train": [1]}, 4, "docs/reference/config.md#train lists its keys"),
        ({"model": 5}, 3, "docs/reference/config.md says of model: text; a folder in Hugging Face layout"),
    ],
)
def test_a_wrong_value_is_answered_with_its_line_and_what_the_config_page_says_of_its_key(
    tmp_path: Path, more: dict[str, Any], line: int, said: str
) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(BASE | more))
    with pytest.raises(Stop) as stop:
        load_config(tmp_path / "a.yaml")
    assert f"(line {line})" in stop.value.message
    assert stop.value.hint.startswith(said)
    with pytest.raises(Stop) as given:
        load_config(tmp_path / "a.yaml", ["train.lr=fast", "run.track=5", "train.until=5", "train.seed=x", "model=[]", "train=5"])
    assert "(line" not in given.value.message


def _numbers(part: dict[str, Any], path: str, sections: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each number that a config's schema takes."""
    part = sections[part["$ref"].rpartition("/")[2]] if "$ref" in part else part
    inner = {"": part.get("items"), "*": part.get("additionalProperties"), **part.get("properties", {})}
    for one in part.get("anyOf", []):
        yield from _numbers(one, path, sections)
    for name, one in inner.items():
        yield from _numbers(one, f"{path}.{name}".strip("."), sections) if isinstance(one, dict) else ()
    if part.get("type") in ("integer", "number"):
        yield path, part


def test_each_number_of_a_config_has_a_most() -> None:
    schema = Config.model_json_schema()
    without = [path for path, part in _numbers(schema, "", schema["$defs"]) if not {"maximum", "exclusiveMaximum", "le"} & part.keys()]
    assert [path for path in without if not path.startswith("faults.")] == ["train.max_grad_norm"]  # a huge one leaves gradients alone


def test_plan_check_and_data_check_end_with_the_next_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pairs.csv").write_text("prompt;chosen;rejected\nWhat is it?;A tree;A bird\n")
    assert main(["data", "check", "pairs.csv", "--workers", "1"]) == 1
    assert (
        capsys.readouterr().out.splitlines()[-1].startswith("next, for rows of preferences: holdfast data check pairs.csv --objective dpo")
    )
    (tmp_path / "my rows.csv").write_text("ask;answer\nWhat is it?;A tree\n")
    assert main(["data", "check", "my rows.csv", "--field", "question=ask", "--workers", "1"]) == 0
    told = "next: holdfast init --model MODEL --data 'my rows.csv' --field question=ask"
    assert capsys.readouterr().out.splitlines()[-1] == told
    assert _next([], ["a.yaml", "train.lr=1e-4"]) == "holdfast train a.yaml train.lr=1e-4"
    assert _next(["first"], ["a.yaml"]).endswith("holdfast check a.yaml --only first")


def test_a_linked_model_keeps_its_name(tmp_path: Path) -> None:
    (tmp_path / "widened-7000ef").mkdir()
    (tmp_path / "My-Model").symlink_to(tmp_path / "widened-7000ef")
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(BASE | {"model": "./My-Model"}))
    assert load_config(tmp_path / "a.yaml").model == str(tmp_path.resolve() / "My-Model")


@pytest.mark.usefixtures("no_alternatives")
def test_a_plan_without_its_rows_names_the_near_file_and_leads_to_no_command_that_needs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    (tmp_path / "a.yaml").write_text("model: tiny\ndata: {files: row.jsonl}\n")
    assert main(["plan", "a.yaml", "--card", "RTX 4090"]) == 0
    (told,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("next: ")]
    assert "row.jsonl: no such file; did you mean " in told and "rows.jsonl?" in told
    assert "holdfast check" not in told and "holdfast train" not in told


def test_a_config_of_texts_given_to_the_row_check_is_answered_with_the_command_that_reads_rows_as_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    pairs = BASE | {"data": {"files": "my rows.jsonl", "format": "chat", "fields": {"messages": "talk"}}, "train": {"objective": "dpo"}}
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(pairs))
    (tmp_path / "my rows.jsonl").write_text("")
    wanted = "--objective dpo --format chat --field messages=talk --max-tokens 512"
    for given in (["--config", "a.yaml"], ["a.yaml"]):
        assert main(["data", "check", *given]) == 2
        assert f"holdfast data check 'my rows.jsonl' {wanted}" in capsys.readouterr().err
    (tmp_path / "own").mkdir()
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(pairs | {"model": "own"}))  # whose template and tokens decide
    assert main(["data", "check", "a.yaml"]) == 2
    assert f"holdfast data check 'my rows.jsonl' --tokenizer own {wanted}" in capsys.readouterr().err


def test_an_empty_value_is_told_as_yaml_writes_it(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("model: tiny\ndata: {files: rows.jsonl}\ntrain: {seed: }\n")
    with pytest.raises(Stop, match=r"train\.seed: null: ") as refused:
        load_config(tmp_path / "a.yaml")
    assert "None" not in str(refused.value)


def test_the_row_check_says_that_tokens_of_a_pair_are_those_of_both_its_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pairs.csv").write_text("prompt;chosen;rejected\nWhat is it?;A tree;A bird\n")
    assert main(["data", "check", "pairs.csv", "--objective", "dpo", "--workers", "1"]) == 0
    assert "; a pair, its prompt with either answer: min " in capsys.readouterr().out
    (tmp_path / "plain.csv").write_text("prompt;completion\nWhat is it?;A tree\n")
    assert main(["data", "check", "plain.csv", "--workers", "1"]) == 0
    assert "; a row: min " in capsys.readouterr().out


def test_a_quote_that_is_left_open_is_told_by_its_place(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("data: {files: rows.jsonl}\nmodel: 'tiny\n")
    with pytest.raises(Stop, match="the quote opened in line 2, column 8 is not closed"):
        load_config(tmp_path / "a.yaml")


def test_a_config_where_a_run_is_meant_is_told_what_makes_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.yaml").write_text("model: tiny\n")
    assert main(["chat", str(tmp_path / "mine.yaml")]) == 2
    assert f"a config makes a run: holdfast train {tmp_path / 'mine.yaml'}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "read"),
    [("1:30", "1:30"), ("1:30.5", "1:30.5"), ("010", "010"), ("10", 10), ("-3", -3), ("0", 0), ("0x10", 16), ("1.5", 1.5)],
)
def test_numbers_that_yaml_takes_for_others_are_texts(value: str, read: object, tmp_path: Path) -> None:
    """1:30 hours were 90, in base 60, and 010 was 8."""
    assert value_of(f"a: {value}")["a"] == read
    file = tmp_path / "c.yaml"
    file.write_text(f"model: tiny\ndata: {{files: rows.jsonl}}\ntrain: {{until: {{hours: {value}}}}}\n")
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    if ":" in value:
        with pytest.raises(Stop, match=r"train\.until\.hours: '1:30.*valid number.*line 3"):
            load_config(file)
    elif value in ("10", "1.5", "0x10", "010"):
        config = load_config(file)
        assert config.train.until is not None and config.train.until.hours == {"1.5": 1.5, "0x10": 16}.get(value, 10)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("train c.yaml data.files=*.jsonl", "*.jsonl is a pattern, and a config names each file: [a.jsonl, b.jsonl]"),
        ("train c.yaml data.files=*.csv", "*.csv: no such file"),
        ("train c.yaml --run a.jsonl", "a.jsonl is a file, and a run is a folder"),
        ("run --run a.jsonl -- python -c 1", "a.jsonl is a file, and a run is a folder"),
        ("init --model tiny --data a.jsonl --card Foo", "-> leave --card out; then holdfast plan CONFIG --memory 32GiB"),
        ("serve runs/a --port abc", "--port abc: a whole number is needed"),
        ("plan c.yaml --price free", "--price free: a number is needed"),
        ("chat", "the following arguments are required: RUN\n"),
        ("data sample a.jsonl --rows 0 --out d.jsonl", "--rows 0: at least 1 is needed"),
    ],
)
def test_commands_say_what_is_needed(
    words: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text('{"prompt": "q", "completion": "a"}\n')
    (tmp_path / "c.yaml").write_text("model: tiny\ndata: {files: a.jsonl}\n")
    assert main(words.split()) == 2
    assert told in capsys.readouterr().err and not (tmp_path / "d.jsonl").exists()


def test_compare_names_its_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found = {
        "runs": ["a", "b"],
        "differences": [{"what": "train.lr", "values": {"a": 1, "b": 2}}],
        "likely": [],
        "band": None,
        "unknown": [],
    }
    monkeypatch.setattr("holdfast.cli.commands.compare.compared", lambda names: found)
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    assert capsys.readouterr().out.splitlines() == ["runs: a | b", "train.lr: 1 | 2"]
