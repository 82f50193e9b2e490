"""Kinds of tasks: an older name means the same, and nothing falls to another kind's answer because it is not a table."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

import holdfast.base.tasks as tasks
from conftest import holdfast, start, wait_until, write_table
from holdfast.base.errors import Stop
from holdfast.base.tasks import kind_named, kind_of, task_kinds
from holdfast.book.checks import packages_missing
from holdfast.book.kinds.check import Case
from holdfast.config.config import Config
from holdfast.machine.machine_file import read
from holdfast.planning.planning import planner

Write = Callable[..., Path]
pytestmark = pytest.mark.usefixtures("no_leftovers")
TEXT = {"model": "tiny", "data": {"files": ["f"]}}
TABLE = {"task": "tabular", "data": {"files": ["f"]}, "table": {"target": "y"}}


def test_an_older_name_is_told_once_and_gives_the_same_bits_in_an_old_folder_too(config_of: Write, tmp_path: Path) -> None:
    config = config_of(train={"steps": 30})
    undisturbed = holdfast("train", config, "--run", tmp_path / "whole", "--json")
    assert undisturbed.returncode == 0 and "called" not in undisturbed.stderr
    run = tmp_path / "old"
    child = start("train", config, "task=sft", "--run", run)
    wait_until(lambda: (run / "steps.jsonl").exists())
    child.send_signal(signal.SIGINT)
    output, _ = child.communicate()
    assert child.returncode == 130
    assert output.count("task: sft is called task: text now") == 1
    kept = yaml.safe_load((run / "config.yaml").read_text())
    assert kept["task"] == "text"
    old = {"task": "sft"} | {name: kept[name] for name in ("model", "data", "adapter", "table", "network")}
    (run / "config.yaml").write_text(yaml.safe_dump(old | {name: kept[name] for name in kept if name not in old}, sort_keys=False))
    resumed = holdfast("train", config, "--run", run, "--json")
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(resumed.stdout)["artifact_sha256"] == json.loads(undisturbed.stdout)["artifact_sha256"]
    assert holdfast("report", run).returncode == 0
    again = holdfast("train", config, "task=sft", "--run", run, "--json")
    assert again.returncode == 0 and json.loads(again.stdout)["status"] == "finished"


def test_the_doctor_asks_for_the_packages_of_the_kind() -> None:
    facts = read({"packages": {"transformers": None, "peft": None, "polars": None}})

    def said(tree: dict[str, object] | None) -> list[str]:
        case = Case(machine=facts, config=Config.model_validate(tree) if tree else None)
        return [finding.message for finding in packages_missing.look(case)]

    assert said(None) == said(TEXT) == said(TEXT | {"task": "sft"}) == ["transformers and peft not installed"]
    assert said(TABLE) == ["polars not installed"]


@pytest.mark.parametrize("tree", [TABLE | {"model": "tiny"}, TABLE | {"adapter": {"r": 4}}, TEXT | {"network": {"members": 3}}])
def test_a_section_of_another_kind_is_refused(tree: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"for (language models|networks on tables); say task: (text|tabular), or leave it out"):
        Config.model_validate(tree)


def test_a_third_kind_gets_nobodys_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of a kind that has no base model, no plan, no texts, no chat and ships nothing: each is told as such."""
    third = replace(task_kinds()[0], name="third", aliases=(), what="a third thing", base_model=False, traced=None, packages=("thirdlib",),
                    continues=False, chats=False, ships=False, text_rows=False, otherwise="load it")  # fmt: skip
    kinds = (*task_kinds(), third)
    monkeypatch.setattr(tasks, "task_kinds", lambda: kinds)
    config = Config.model_validate(TEXT | {"task": "third"})
    assert kind_of(config) is third and kind_named("third") is third
    with pytest.raises(Stop, match="no plan of a third thing"), planner(config, {}):
        pass
    with pytest.raises(ValueError, match="a third thing has none"):
        Config.model_validate(TEXT | {"task": "third", "train": {"fsdp": True}})
    assert list(packages_missing.look(Case(machine=read({"packages": {"peft": None}}), config=config))) == []


def test_what_is_for_texts_refuses_a_table(assets: SimpleNamespace, tmp_path: Path) -> None:
    write_table(tmp_path / "t.csv", 60)
    tree = {"task": "tabular", "data": {"files": "t.csv"}, "table": {"target": "y"}, "network": {"hidden": "4", "exports": []}}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(tree | {"train": {"steps": 2, "threads": 1}}))
    run = tmp_path / "run"
    assert holdfast("train", tmp_path / "c.yaml", "--run", run).returncode == 0
    for words, told in (
        (("chat", run), "a network on tables, which nobody can talk to"),
        (("export", run, "--to", "merged", "--out", tmp_path / "out"), "a network on tables and no language model"),
        (("plan", tmp_path / "c.yaml"), "no plan of a network on tables"),
        (("data", "show", tmp_path / "t.csv", "--row", 1, "--config", tmp_path / "c.yaml"), "whose rows are no texts"),
    ):
        done = holdfast(*words)
        assert done.returncode in (1, 2) and told in done.stderr, done.stderr
    (tmp_path / "text.yaml").write_text(yaml.safe_dump(TEXT | {"data": {"files": "t.csv"}}))
    done = holdfast("data", "check", "--config", tmp_path / "text.yaml")
    assert done.returncode == 2 and "is of a language model (task: text)" in done.stderr
    assert "t.csv --max-tokens 512" in done.stderr, "the command that looks at its rows as it reads them"
