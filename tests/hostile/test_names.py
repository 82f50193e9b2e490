"""Names that are not UTF-8, and journals that hold what no journal does: told in a sentence by every command."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from conftest import holdfast
from holdfast.cli.main import main

ODD = os.fsdecode(b"caf\xe9")  # as an old disk or a Latin-1 archive has it


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    try:
        (tmp_path / ODD).mkdir()
    except OSError:
        pytest.skip("this file system takes UTF-8 names alone")
    (tmp_path / ODD / "rows.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    (tmp_path / ODD / "run.yaml").write_text("model: tiny\ndata: {files: rows.jsonl}\ntrain: {steps: 1}\n")
    (tmp_path / f"{ODD}.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    return tmp_path / ODD


@pytest.mark.parametrize(
    "command",
    [
        ("train", "{odd}/run.yaml"),
        ("doctor", "{odd}/run.yaml", "--no-probe"),
        ("data", "check", "{odd}.jsonl"),
        ("data", "check", "{odd}"),
        ("data", "clean", "{odd}.jsonl", "--out", "{odd}/out", "--rejects", "{odd}/rejects"),
        ("data", "make", "--rows", "3", "--out", "{odd}/made.jsonl", "--recipe", "{odd}.jsonl"),
        ("status", "{odd}"),
        ("diagnose", "{odd}"),
        ("report", "{odd}"),
        ("bundle", "{odd}"),
        ("stop", "{odd}"),
        ("trial", "{odd}", "--step", "1"),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_a_name_that_is_not_utf_8_is_told(odd: Path, command: tuple[str, ...], as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    code = main([part.format(odd=odd) for part in command] + ["--json"] * as_json)
    out, err = capsys.readouterr()
    assert code in (0, 1, 2) and "Traceback" not in err, err
    assert code == 0 or err.startswith("holdfast: ")
    if as_json:
        json.loads(out)


def test_a_run_is_not_begun_where_its_journals_could_not_name_it(odd: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = odd.parent / "run.yaml"
    config.write_text("model: tiny\ndata: {files: rows.jsonl}\n")
    (odd.parent / "rows.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    assert main(["train", str(config), "--run", str(odd / "run")]) == 2
    assert "is not UTF-8" in capsys.readouterr().err and not (odd / "run").exists()


def test_status_shows_a_run_under_any_name(odd: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (odd / "run.json").write_text("{}")
    assert main(["status", str(odd.parent), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["run"].endswith(ODD)


def test_a_name_in_utf8_that_the_locale_hides_is_not_called_something_else(assets: SimpleNamespace, tmp_path: Path) -> None:
    """`LC_ALL=C holdfast data check é.jsonl` was told that its name is not UTF-8."""
    rows = tmp_path / "é.jsonl"
    rows.write_bytes(assets.rows.read_bytes())
    env = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    refused = holdfast("data", "check", rows.name, cwd=tmp_path, env=env)
    assert refused.returncode == 2 and "PYTHONUTF8=1" in refused.stderr and "not UTF-8" not in refused.stderr
    assert holdfast("data", "check", rows.name, cwd=tmp_path, env=env | {"PYTHONUTF8": "1"}).returncode == 0
