"""A run's own config that cannot be read as it stands: what is wrong is told, and nothing is called damaged that is not."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import DamagedFile, Stop
from holdfast.base.files import cut_torn_line, read_lines
from holdfast.cli.main import main
from holdfast.run.folder import RunFolder

WHOLE = "model: tiny\ndata: {files: [rows.jsonl]}\ntrain: {steps: 3}\n"


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.write_id("a")
    return folder


@pytest.mark.parametrize(
    ("text", "told", "silent"),
    [
        (WHOLE + "sharding: {x: 1}\n", ("has keys that holdfast", "does not know: sharding", "the version that wrote them"), "damaged"),
        (WHOLE.replace("steps: 3", "steps: 3, warmth: 2"), ("does not know: train.warmth",), "damaged"),
        (WHOLE.replace("steps: 3", "steps: x") + "sharding: 1\n", ("is damaged: ", "train.steps", "sharding: unknown key"), "pydantic"),
        ("model: [", ("is damaged: ",), "Traceback"),
    ],
    ids=["a section of a newer version", "a key of a newer version", "a wrong value too", "no YAML"],
)
def test_what_is_wrong_in_it_is_told(run: RunFolder, text: str, told: tuple[str, ...], silent: str) -> None:
    """A config that a newer version had written was called damaged, with an address of pydantic's pages."""
    run.config_file.write_text(text)
    with pytest.raises(Stop) as stopped:
        run.config()
    said = f"{stopped.value.message} -> {stopped.value.hint}"
    assert stopped.value.code == 1 and all(part in said for part in (*told, "begin again with --run DIR")) and silent not in said


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "timeline.jsonl is damaged: no settings for step"),
        ('{"from_step": 1, "settings": {"steps": "x"}}\n', "values that no run writes"),
    ],
    ids=["empty", "of another form"],
)
def test_a_timeline_without_settings_is_told_by_compare_and_trial(
    text: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`compare` ended with 70 on it."""
    whole = Path(__file__).parents[1] / "fixtures" / "runs" / "preferences"
    damaged = tmp_path / "damaged"
    shutil.copytree(whole, damaged)
    (damaged / "timeline.jsonl").write_text(text)
    for words in (["compare", str(damaged), str(whole)], ["trial", str(damaged), "--step", "1"]):
        assert main(words) == 1
        said = capsys.readouterr().err
        assert told in said and "bug in holdfast" not in said


@pytest.mark.parametrize(
    ("read", "told"),
    [(read_lines, "is damaged: it is a link that leads to itself"), (cut_torn_line, "is damaged: it is a link that leads to itself")],
)
def test_a_journal_that_is_a_loop_of_links_is_told_in_words(read: Callable[[Path], Any], told: str, tmp_path: Path) -> None:
    _loop(tmp_path / "steps.jsonl")
    with pytest.raises(DamagedFile, match=told):
        list(read(tmp_path / "steps.jsonl"))


@pytest.mark.parametrize("leads_to", ["a-file", "nowhere"])
def test_a_journal_that_is_a_link_is_not_said_to_lead_to_itself(leads_to: str, tmp_path: Path) -> None:
    (tmp_path / "a-file").write_text("{}\n")
    (tmp_path / "steps.jsonl").symlink_to(leads_to)
    with pytest.raises(DamagedFile, match=r"is damaged: it is a link\n"):
        cut_torn_line(tmp_path / "steps.jsonl")


def _loop(file: Path) -> None:
    file.symlink_to(file.name)


def _dangling(file: Path) -> None:
    file.symlink_to("nowhere")


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (os.mkfifo, "config.yaml is damaged: it is not a regular file"),
        (os.mkdir, "config.yaml is damaged: it is a folder"),
        (_loop, "config.yaml is a link that leads to no file"),
        (_dangling, "config.yaml is a link that leads to no file"),
    ],
    ids=["fifo", "folder", "loop", "dangling"],
)
def test_what_is_no_file_in_its_place_is_told(
    run: RunFolder, kind: Callable[[Path], None], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a link to nowhere was said that the run was not prepared to its end, of a pipe that it "cannot be written"."""
    kind(run.config_file)
    with pytest.raises(Stop, match=re.escape(told)) as stopped:
        run.existing().config()
    assert stopped.value.code == 1
    assert main(["report", str(run.path)]) == 1
    told_by_report = capsys.readouterr().err
    assert "config.yaml" in told_by_report and "cannot be written" not in told_by_report and "not prepared" not in told_by_report
