"""The list of what was shipped: versions by adapter, a gate before promotion, a way back."""

from __future__ import annotations

import errno
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import Stop
from holdfast.base.files import read_lines
from holdfast.cli.commands.models import _show
from holdfast.cli.main import main
from holdfast.export import registry
from holdfast.export.registry import name_of, promote, read_registry, record_export, record_verdict, rollback, withdraw
from holdfast.export.subject import read_subject, settings_of
from support.shipped import make_adapter

EXPORT = {"kind": "merged", "out": "/somewhere/out", "files": [{"path": "model.safetensors", "bytes": 1, "sha256": "a"}]}


def hashes(adapter: str) -> dict[str, Any]:
    return {"run": f"/runs/{adapter}", "base": "tiny", "adapter_sha256": adapter * 8, "data_sha256": None}


def test_every_adapter_is_one_version_of_its_name(tmp_path: Path) -> None:
    file = tmp_path / "models.jsonl"
    numbers = [record_export(file, "ops", hashes("one"), EXPORT), record_verdict(file, "ops", hashes("one"), None, "better")]
    numbers += [record_export(file, "ops", hashes("two"), EXPORT), record_export(file, "other", hashes("two"), EXPORT)]
    assert numbers == [1, 1, 2, 1]
    models = read_registry(file).listed()
    assert [(m["name"], m["version"], m["verdict"], len(m["exports"])) for m in models] == [
        ("ops", 1, "better", 1),
        ("ops", 2, None, 1),
        ("other", 1, None, 1),
    ]


def test_a_verdict_is_listed_with_what_was_lost_on_general_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "models.jsonl"
    for general in ("worse", "same"):
        record_verdict(file, "ops", hashes(general), None, "better", general)
    record_verdict(file, "ops", hashes("before"), None, "better")  # as earlier versions wrote it
    models = read_registry(file).listed()
    assert [(one["verdict"], one["general"]) for one in models] == [("better", "worse"), ("better", "same"), ("better", None)]
    _show(models, file)
    assert [", but worse on general rows" in line for line in capsys.readouterr().out.splitlines()] == [True, False, False]


def test_a_version_whose_run_is_gone_is_shown_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A rollback to it puts in place what `serve` cannot load."""
    file = tmp_path / "models.jsonl"
    (tmp_path / "run").mkdir()
    for name, run in (("there", str(tmp_path / "run")), ("gone", str(tmp_path / "no run")), ("folder", None)):
        record_verdict(file, "ops", hashes(name) | {"run": run}, None, "better")
    _show(read_registry(file).listed(), file)
    assert ["(gone: nothing can serve it)" in line for line in capsys.readouterr().out.splitlines()] == [False, True, False]


def test_the_command_that_is_told_can_be_typed(tmp_path: Path) -> None:
    file = tmp_path / "models.jsonl"
    for name in ("one", "two"):
        record_export(file, "ops", hashes(name) | {"run": f"/my runs/{name}"}, EXPORT)
    promote(file, "ops", 1, "by hand")
    with pytest.raises(Stop) as stop:
        promote(file, "ops", 2, None)
    typed = shlex.split(stop.value.hint.partition(";")[0])
    assert typed == ["holdfast", "verify", "/my runs/two", "--against", "/my runs/one"]


def test_nothing_is_promoted_that_was_not_found_better_than_what_is_in_place(tmp_path: Path) -> None:
    file = tmp_path / "models.jsonl"
    for name in ("one", "two"):
        record_export(file, "ops", hashes(name), EXPORT)
    with pytest.raises(Stop, match="no verify was asked"):
        promote(file, "ops", 1, None)
    record_verdict(file, "ops", hashes("one"), None, "cannot_tell")
    with pytest.raises(Stop, match="verify says cannot tell"):
        promote(file, "ops", 1, None)
    record_verdict(file, "ops", hashes("one"), None, "better")
    promote(file, "ops", 1, None)
    record_verdict(file, "ops", hashes("two"), None, "better")
    with pytest.raises(Stop, match="not found better than ops 1") as stop:
        promote(file, "ops", 2, None)
    assert "verify /runs/two --against /runs/one" in stop.value.hint
    record_verdict(file, "ops", hashes("two"), hashes("one")["adapter_sha256"], "better")
    promote(file, "ops", 2, None)
    assert [m["promoted"] for m in read_registry(file).listed()] == [False, True]
    rollback(file, "ops")
    assert [m["promoted"] for m in read_registry(file).listed()] == [True, False]
    with pytest.raises(Stop, match="there is none before it"):
        rollback(file, "ops")


LORA = {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"], "use_rslora": False, "peft_version": "0.18", "lora_dropout": 0.1}


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"lora_alpha": 0}, False),
        ({"lora_alpha": 8}, False),
        ({"use_rslora": True}, False),
        ({"use_rslora": True, "r": 16, "lora_alpha": 4}, False),
        ({"alpha_pattern": {"q_proj": 1}}, False),
        ({"target_modules": ["q_proj"]}, False),
        ({"layer_replication": [[2, 3], [0, 1]]}, False),
        ({"target_modules": ["v_proj", "q_proj"], "peft_version": "0.19", "lora_dropout": 0.0, "inference_mode": True}, True),
        ({"a_newer_switch": False, "a_newer_pattern": {}, "a_newer_name": None}, True),
    ],
    ids=str,
)
def test_what_changes_the_logits_is_part_of_what_a_version_is(changes: dict[str, Any], same: bool) -> None:
    assert (settings_of(LORA | changes) == settings_of(LORA)) is same
    assert settings_of({"layer_replication": [[2, 3], [0, 1]]}) != settings_of({"layer_replication": [[0, 1], [2, 3]]})


def test_an_adapter_scaled_by_the_root_of_its_rank_is_the_same_said_plainly() -> None:
    assert settings_of(LORA | {"use_rslora": True, "r": 16}) == settings_of(LORA | {"r": 16, "lora_alpha": 64})
    by_module = LORA | {"use_rslora": True, "rank_pattern": {"q_proj": 4}}
    assert settings_of(by_module)["use_rslora"], "each module has a scale of its own there"


def test_the_same_weights_with_another_scaling_inherit_no_verdict(assets: Any, tmp_path: Path) -> None:
    file, folder = tmp_path / "models.jsonl", make_adapter(assets.model, tmp_path / "adapter")
    measured = read_subject(folder).hashes()
    assert record_verdict(file, "ops", measured, None, "better") == 1
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | {"lora_alpha": 0}))
    copy = read_subject(folder).hashes()
    assert copy["adapter_sha256"] == measured["adapter_sha256"]
    assert record_export(file, "ops", copy, EXPORT) == 2
    with pytest.raises(Stop, match="no verify was asked"):
        promote(file, "ops", 2, None)
    promote(file, "ops", 1, None)
    record_verdict(file, "ops", copy, name_of(copy), "better")
    with pytest.raises(Stop, match="not found better than ops 1"):
        promote(file, "ops", 2, None)
    assert record_verdict(file, "ops", copy, name_of(measured), "better") == 2
    assert promote(file, "ops", 2, None).in_place["ops"][-1] == 2


def test_entries_from_before_settings_counted_are_known_by_their_run(tmp_path: Path) -> None:
    file = tmp_path / "models.jsonl"
    record_verdict(file, "ops", hashes("one"), None, "better")
    assert record_export(file, "ops", hashes("one") | {"behaviour_sha256": "b", "run": "/runs/a-copy"}, EXPORT) == 2
    assert record_export(file, "ops", hashes("one") | {"behaviour_sha256": "a"}, EXPORT) == 1
    assert record_export(file, "ops", hashes("one") | {"behaviour_sha256": "c"}, EXPORT) == 3


def test_a_version_that_is_worse_on_general_rows_is_promoted_for_a_reason_alone(tmp_path: Path) -> None:
    file = tmp_path / "models.jsonl"
    record_verdict(file, "ops", hashes("one"), None, "better", "worse")
    with pytest.raises(Stop, match="better than its base on the rows of its task, and worse on general rows") as stop:
        promote(file, "ops", 1, None)
    assert "--force" in stop.value.hint
    promote(file, "ops", 1, "general rows do not matter here")
    record_verdict(file, "ops", hashes("two"), name_of(hashes("one")), "better", "worse")
    with pytest.raises(Stop, match="better than ops 1 on the rows of its task, and worse"):
        promote(file, "ops", 2, None)
    record_verdict(file, "ops", hashes("two"), name_of(hashes("one")), "better", "cannot_tell")
    assert promote(file, "ops", 2, None).in_place["ops"][-1] == 2


def test_a_withdrawn_version_is_neither_in_place_nor_comes_back(tmp_path: Path) -> None:
    file = tmp_path / "models.jsonl"
    for number, name in enumerate(("one", "two", "three"), 1):
        record_verdict(file, "ops", hashes(name), None, "better")
        promote(file, "ops", number, "for the test")
    withdraw(file, "ops", ["/runs/two", "/runs/elsewhere"])
    assert [m["promoted"] for m in read_registry(file).listed()] == [False, False, True]
    with pytest.raises(Stop, match="no verify was asked"):
        promote(file, "ops", 2, None)
    assert rollback(file, "ops").in_place["ops"] == [1]
    withdraw(file, "ops", ["/runs/one"])
    assert read_registry(file).current("ops") is None


def test_a_reason_takes_the_place_of_a_verdict_and_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "models.jsonl"
    record_export(file, "ops", hashes("one"), EXPORT)
    promote(file, "ops", 1, "asked for by the users")
    assert json.loads(file.read_text().splitlines()[-1])["reason"] == "asked for by the users"


def test_a_torn_line_is_cut_and_the_list_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "models.jsonl"
    record_export(file, "ops", hashes("one"), EXPORT)
    with file.open("a") as handle:
        handle.write('{"event": "expor')
    record_export(file, "ops", hashes("two"), EXPORT)
    assert [m["version"] for m in read_registry(file).listed()] == [1, 2]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["promote", "ops"], "not understood"),
        (["delete", "ops"], "not understood"),
        (["promote", "ops", "one"], "not a version"),
        (["promote", "ops", "9"], "it has 1"),
        (["promote", "none", "1"], "there are ops"),
        (["rollback", "ops"], "no version of ops is in place"),
        (["list", "--force", "x"], "--force is for promote"),
    ],
)
def test_bad_input_is_answered_with_a_sentence(
    words: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_MODELS", str(tmp_path / "models.jsonl"))
    record_export(tmp_path / "models.jsonl", "ops", hashes("one"), EXPORT)
    assert main(["models", *words]) in (1, 2)
    assert told in capsys.readouterr().err


def test_what_is_in_place_is_answered_without_another_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A disk that fails to read behind the entry does not make a promotion look undone."""
    file = tmp_path / "models.jsonl"
    for name in ("one", "two"):
        record_export(file, "ops", hashes(name), EXPORT)
    monkeypatch.setenv("HOLDFAST_MODELS", str(file))
    asked = 0

    def once(path: Path) -> Iterator[dict[str, Any]]:
        nonlocal asked
        asked += 1
        if asked > 1:
            raise OSError(errno.EIO, "Input/output error", str(path))
        return read_lines(path)

    monkeypatch.setattr(registry, "read_lines", once)
    for words, place in ((("promote", "ops", "1"), [1]), (("promote", "ops", "2"), [2]), (("rollback", "ops"), [1])):
        asked = 0
        assert main(["models", *words, "--json", *(["--force", "why"] if words[0] == "promote" else [])]) == 0
        assert [one["version"] for one in json.loads(capsys.readouterr().out)["models"] if one["promoted"]] == place
