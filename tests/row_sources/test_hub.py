"""Rows and models on the hub: found, fetched once, kept at their commit; what cannot be is said with the next command."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import peft
import pytest
import torch
from peft import AutoPeftModelForCausalLM, LoraConfig
from safetensors.torch import load_file, save
from transformers import AutoModelForCausalLM

from conftest import events, holdfast, make_rows
from holdfast.base.errors import Stop
from holdfast.base.files import write_json
from holdfast.data.tokens.codec import load_codec
from holdfast.export.export import ExportRequest, write_adapter
from holdfast.export.subject import read_subject
from holdfast.row_sources.fetch import fetch_rows
from holdfast.row_sources.splits import Use
from holdfast.run.folder import RunFolder
from holdfast.trainer.model.trained.adapters import adapter_config
from support.data_hub import TOKEN, DataHub, data_hub

pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")


def _jsonl(first: int, count: int) -> str:
    return "".join(json.dumps(row) + "\n" for row in make_rows(first + count)[first:])


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[DataHub]:
    """A hub, with a cache of its own and no token; for this process and its children."""
    with data_hub() as made:
        cache = tmp_path / "hf" / "hub"
        template = f"{made.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        constants = {"ENDPOINT": made.url, "HUGGINGFACE_CO_URL_TEMPLATE": template, "HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": False}
        for name, value in constants.items():
            monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)
        monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no-token"))
        for name, value in {"HF_ENDPOINT": made.url, "HF_HOME": str(tmp_path / "hf"), "HOLDFAST_CACHE": str(tmp_path / "cache")}.items():
            monkeypatch.setenv(name, value)
        for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_CACHE"):
            monkeypatch.delenv(name, raising=False)
        made.put("me/rows", {"README.md": "# rows", "train.jsonl": _jsonl(0, 40), "test.jsonl": _jsonl(40, 10)})
        yield made


def test_a_name_is_its_training_split_fetched_once(hub: DataHub, tmp_path: Path) -> None:
    told: list[str] = []
    [file] = fetch_rows("me/rows", tell=told.append)
    assert Path(file).name == "train.jsonl" and Path(file).read_text() == _jsonl(0, 40)
    assert Path(file).is_relative_to(tmp_path / "hf" / "hub"), "HF_HOME is where it lies"
    assert "split train" in told[0] and "not used: split test" in told[0]
    asked = len(hub.asked)
    assert fetch_rows("me/rows", tell=told.append) == [file]
    assert not [path for path in hub.asked[asked:] if "resolve" in path], "what is in the cache is not fetched again"
    assert Path(fetch_rows("me/rows", "judging")[0]).name == "test.jsonl"


@pytest.mark.parametrize(
    "name",
    [
        "me/rows?split=test",
        "hf://datasets/me/rows/test.jsonl",
        "https://huggingface.co/datasets/me/rows/blob/main/test.jsonl",
        "https://huggingface.co/datasets/me/rows?split=test",
        "me/rows@main?split=test",
    ],
)
def test_ways_to_name_the_same_rows(name: str, hub: DataHub) -> None:
    assert Path(fetch_rows(name)[0]).read_text() == _jsonl(40, 10)


@pytest.mark.parametrize(
    ("name", "use", "found"),
    [
        ("hf://datasets/me/rows/*.jsonl", "learned", ["train.jsonl"]),
        ("hf://datasets/me/rows@main/*.jsonl", "judging", ["test.jsonl"]),
        ("https://huggingface.co/datasets/me/rows/resolve/main/t*", "learned", ["train.jsonl"]),
        ("hf://datasets/me/rows/*.jsonl", "all", ["test.jsonl", "train.jsonl"]),
        ("hf://datasets/me/rows/te*.jsonl", "learned", ["test.jsonl"]),  # asked for by its name
        ("hf://datasets/me/rows/*.jsonl?split=test", "learned", ["test.jsonl"]),
        ("hf://datasets/me/rows/train.jsonl?split=test", "learned", ["train.jsonl"]),  # data.split is of all data sets of a config
    ],
)
def test_a_pattern_takes_the_split_that_the_name_alone_would(name: str, use: Use, found: list[str], hub: DataHub) -> None:
    told: list[str] = []
    assert [Path(file).name for file in fetch_rows(name, use, told.append)] == found
    left_out = next((text for text in told if "left out test (1 file)" in text), "")
    assert bool(left_out) == (found == ["train.jsonl"] and "?" not in name)
    if left_out:
        judging = left_out.rpartition("data.held_out_files: ")[2]
        assert [Path(file).name for file in fetch_rows(judging, "judging")] == ["test.jsonl"], "what it names can be given"


@pytest.mark.parametrize(
    ("name", "code", "message", "hint"),
    [
        ("me/nothing", 2, "me/nothing is not a file, and no data set on the hub that can be seen: .* without a token", "HF_TOKEN"),
        ("me/closed", 1, "me/closed is gated: it was asked without a token", "/datasets/me/closed, then hf auth login"),
        ("me/rows@v9", 2, "me/rows has no revision v9", "a branch, a tag or a commit"),
        ("me/rows?split=dev", 2, r"me/rows has no split dev; it has test \(1 file\), train \(1 file\)", "data.split: test"),
        ("me/rows?subset=fr", 2, "me/rows has no subset fr", "leave data.subset out"),
        ("me/rows?split=train[:10]", 2, "a split is asked for by its name", "data sample"),
        ("me/rows?spilt=test", 2, "spilt cannot be asked for", "OWNER/NAME@REVISION"),
        ("me/script", 2, r"by a script \(script.py\), which is not run", "refs/convert/parquet"),
        ("me/pictures", 2, "holds no files of rows .* it has 2 .png", "refs/convert/parquet"),
    ],
)
def test_what_is_not_there_is_said(name: str, code: int, message: str, hint: str, hub: DataHub) -> None:
    hub.put("me/closed", {"train.jsonl": "{}"})
    hub.put("me/script", {"script.py": "import os"})
    hub.put("me/pictures", {"a.png": b"x", "b.png": b"y"})
    hub.gated.add("me/closed")
    with pytest.raises(Stop, match=message) as stop:
        fetch_rows(name)
    assert stop.value.code == code and hint in stop.value.hint, stop.value.hint


def test_the_token_opens_what_is_gated_and_private(hub: DataHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.gated.add("me/rows")
    hub.put("me/private", {"rows.csv": "instruction,output\na,b\n"})
    hub.private.add("me/private")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert fetch_rows("me/rows") and fetch_rows("me/private")
    monkeypatch.setenv("HF_TOKEN", "hf_stale")
    with pytest.raises(Stop, match="does not take the token") as stop:
        fetch_rows("me/private")
    assert stop.value.code == 1


def test_offline_takes_what_is_in_the_cache_and_only_that(hub: DataHub, monkeypatch: pytest.MonkeyPatch) -> None:
    files = fetch_rows("me/rows")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    asked = len(hub.asked)
    assert fetch_rows("me/rows") == files and len(hub.asked) == asked, "nobody is asked"
    for name in ("me/rows?split=test", "me/other"):
        with pytest.raises(Stop, match=r"is not in the cache .* HF_HUB_OFFLINE forbids") as stop:
            fetch_rows(name)
        assert stop.value.code == 1 and "hf download --repo-type dataset" in stop.value.hint


def test_a_hub_that_is_down_is_told_and_the_cache_is_used(hub: DataHub) -> None:
    files = fetch_rows("me/rows")
    hub.status = 503
    told: list[str] = []
    assert fetch_rows("me/rows", tell=told.append) == files and "the hub is not reached" in told[0]
    with pytest.raises(Stop, match=r"does not give me/other now \(status 503\)"):
        fetch_rows("me/other")


def test_what_another_program_fetched_is_used_where_all_shards_are_there(
    hub: DataHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import huggingface_hub

    shards = {f"data/train-0000{number}-of-00002.jsonl": _jsonl(20 * number, 20) for number in range(2)}
    hub.put("me/shards", dict(shards))
    for name in shards:
        huggingface_hub.hf_hub_download("me/shards", name, repo_type="dataset")
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        if name != max(shards):
            with pytest.raises(Stop, match="is not in the cache"):
                fetch_rows("me/shards")
            monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    assert len(fetch_rows("me/shards")) == 2


def test_a_run_learns_rows_of_the_hub_and_keeps_their_commit(hub: DataHub, config_of: Callable[..., Path], tmp_path: Path) -> None:
    data = {"files": "me/rows", "held_out_files": "me/rows", "split": "train", "weights": {"me/rows": 2.0}}
    config = config_of(data=data, train={"steps": 3}, evaluate={"generate": 0})
    first = holdfast("train", config, "--run", tmp_path / "run", "--json", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    rows = json.loads((tmp_path / "run/data.json").read_text())["rows"]
    assert (rows["train"], rows["held_out"]) == (40, 10) if isinstance(rows, dict) else True
    hub.put("me/rows", {"train.jsonl": _jsonl(60, 30), "validation.jsonl": _jsonl(90, 5)})
    hub.status = 500
    again = holdfast("train", config, "train.steps=5", "--extend", "--run", tmp_path / "run", "--json", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["steps"] == 5 and not events(tmp_path / "run", "data_rebuilt")
    other = holdfast("train", config, "data.split=test", "--run", tmp_path / "run", cwd=tmp_path)
    assert other.returncode == 2 and "belongs to another config" in other.stderr and "me/rows?split=test" in other.stderr


def test_commands_of_data_take_names_too(hub: DataHub, tmp_path: Path) -> None:
    done = holdfast("data", "check", "me/rows?split=test", "--json", cwd=tmp_path)
    assert done.returncode == 0 and json.loads(done.stdout)["rows"] == 10, done.stderr
    missing = holdfast("data", "check", "me/none", "--json", cwd=tmp_path)
    assert missing.returncode == 2 and "no data set on the hub" in missing.stderr, missing.stderr


def test_a_plan_counts_rows_of_the_hub_and_does_without_them(hub: DataHub, config_of: Callable[..., Path], tmp_path: Path) -> None:
    config = config_of(data={"files": "me/rows"}, train={"steps": None, "epochs": 2})
    done = holdfast("plan", config, "--json", cwd=tmp_path)
    assert done.returncode == 0 and "cannot be counted" not in done.stdout, done.stderr
    done = holdfast("plan", config, "data.files=me/none", "--json", cwd=tmp_path)
    assert done.returncode == 0 and "planned without the rows: me/none is not a file" in done.stderr


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"files": "rows.jsonl", "split": "train"}, "data.split: none of data.files is a data set on the hub"),
        ({"files": "me/rows?split=test", "held_out_files": "me/rows"}, "is also in data.files; rows that are learned judge nothing"),
        ({"files": "data/rows.jsonl"}, "data/rows.jsonl: no such file"),
        ({"files": "folder/rows"}, "folder/rows: no such file"),
    ],
)
def test_a_config_that_cannot_be_meant(data: dict[str, Any], message: str, hub: DataHub, config_of: Callable[..., Path]) -> None:
    config = config_of(data=data)
    (config.parent / "rows.jsonl").write_text(_jsonl(0, 5))
    (config.parent / "folder").mkdir()
    done = holdfast("doctor", config, "--no-probe")
    assert done.returncode == 2 and message in done.stderr, done.stderr


@pytest.fixture
def base(hub: DataHub, assets: SimpleNamespace) -> tuple[str, str]:
    """A model on the hub, me/tiny, with two commits: the older one's weights are those of the small model."""
    files: dict[str, str | bytes] = {file.name: file.read_bytes() for file in assets.model.iterdir()}
    older = hub.put("me/tiny", files)
    weights = load_file(assets.model / "model.safetensors")
    first = next(iter(weights))
    newer = hub.put("me/tiny", files | {"model.safetensors": save(weights | {first: weights[first] + 1}, {"format": "pt"})})
    return older, newer


def _adapter(folder: Path, model: Path, base: str) -> Path:
    """Write an adapter that was never trained, of a model in a folder that the hub has under another name."""
    made = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(model), LoraConfig(r=4, lora_alpha=8, task_type="CAUSAL_LM"))
    made.save_pretrained(folder)
    write_json(folder / "adapter_config.json", adapter_config(made, base))
    return folder


def test_an_adapter_keeps_the_commit_of_its_base_wherever_it_is_written(
    hub: DataHub, base: tuple[str, str], assets: SimpleNamespace, tmp_path: Path
) -> None:
    subject = read_subject(_adapter(tmp_path / "adapter", assets.model, f"me/tiny@{base[0]}"))
    assert subject.base_name == f"me/tiny@{base[0]}" and subject.facts.folder.name == base[0], "not the newest"
    (out := tmp_path / "out").mkdir()
    write_adapter(ExportRequest(subject, "adapter", out, {}, lambda _: None), load_codec(subject.facts.folder), out)
    loaded = AutoPeftModelForCausalLM.from_pretrained(out).get_input_embeddings().weight
    older, newer = (AutoModelForCausalLM.from_pretrained("me/tiny", revision=commit).get_input_embeddings().weight for commit in base)
    assert torch.equal(loaded, older) and not torch.equal(loaded, newer)


def test_a_run_from_an_adapter_is_on_the_commit_it_was_trained_on_or_says_so(
    hub: DataHub, base: tuple[str, str], assets: SimpleNamespace, config_of: Callable[..., Path], tmp_path: Path
) -> None:
    start = _adapter(tmp_path / "adapter", assets.model, f"me/tiny@{base[0]}")
    config = config_of(model="me/tiny", adapter={"start": str(start)}, train={"steps": 1}, evaluate={"generate": 0})
    done = holdfast("train", config, "--run", tmp_path / "run", cwd=tmp_path)
    assert done.returncode == 0 and f"trained on me/tiny@{base[0]}" in done.stdout + done.stderr, done.stderr
    assert RunFolder(tmp_path / "run").config().model == f"me/tiny@{base[0]}" and not events(tmp_path / "run", "start_on_another_base")
    other = (f"model=me/tiny@{base[1]}", f"adapter.start={tmp_path / 'run'}")
    done = holdfast("train", config, *other, "--run", tmp_path / "other", cwd=tmp_path)
    assert done.returncode == 0 and "is not the one that" in done.stdout + done.stderr, done.stderr
    assert events(tmp_path / "other", "start_on_another_base")[0]["says"] == "other bytes in model.safetensors"


def test_a_run_that_its_model_was_refused_to_begins_once_it_is_given(
    hub: DataHub, base: tuple[str, str], config_of: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.gated.add("me/tiny")
    config = config_of(model="me/tiny", data={"files": "me/rows"}, train={"steps": 1}, evaluate={"generate": 0})
    done = holdfast("train", config, "--run", tmp_path / "run", cwd=tmp_path)
    assert done.returncode == 1 and "me/tiny is gated" in done.stderr and not (tmp_path / "run").exists(), done.stderr
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    done = holdfast("train", config, "--run", tmp_path / "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
