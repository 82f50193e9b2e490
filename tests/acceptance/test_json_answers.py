"""Under --json a command prints one object with a status, whatever becomes of it."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

import holdfast.cli.commands.schema
from holdfast.base.errors import BLOCKED, GAVE_UP, INTERRUPTED, OUR_BUG, USAGE, Stop
from holdfast.cli.main import main


def answer(capsys: pytest.CaptureFixture[str], code: int, *arguments: object) -> dict[str, Any]:
    assert main([*map(str, arguments), "--json"]) == code
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


@pytest.mark.parametrize(
    ("ends", "code", "status"),
    [
        (Stop(USAGE, "no such key", "this one"), USAGE, "refused"),
        (Stop(BLOCKED, "no rows", "add some"), BLOCKED, "refused"),
        (Stop(GAVE_UP, "the disk is full", "make room"), GAVE_UP, "gave_up"),
        (KeyboardInterrupt("it can be resumed"), INTERRUPTED, "interrupted"),
        (OSError(errno.EIO, "a broken disk"), BLOCKED, "refused"),
        (RuntimeError("what nobody foresaw"), OUR_BUG, "failed"),
        (OSError(errno.ENOSPC, "No space left on device", "/data/x"), BLOCKED, "refused"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), BLOCKED, "refused"),
    ],
)
def test_a_command_that_does_not_come_to_its_answer_has_a_status(
    ends: BaseException, code: int, status: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(_: object) -> tuple[int, dict[str, Any]]:
        raise ends

    monkeypatch.setattr(holdfast.cli.commands.schema, "run", run)
    monkeypatch.setattr(holdfast.cli.commands.schema, "add_arguments", lambda parser: parser.add_argument("--json", action="store_true"))
    told = answer(capsys, code, "schema")
    assert (told["status"], told["code"]) == (status, code) and told["error"]


def test_a_command_line_that_is_wrong_has_one_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(capsys, USAGE, "trian", "c.yaml")["status"] == "refused"
    assert answer(capsys, USAGE, "diagnose", tmp_path / "none.log")["status"] == "refused"


def test_an_answer_of_its_own_stays_whole(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def run(_: object) -> tuple[int, dict[str, Any]]:
        raise Stop(GAVE_UP, "gave up", "read the log", {"status": "gave_up", "steps": 7})

    monkeypatch.setattr(holdfast.cli.commands.schema, "run", run)
    monkeypatch.setattr(holdfast.cli.commands.schema, "add_arguments", lambda parser: parser.add_argument("--json", action="store_true"))
    assert answer(capsys, GAVE_UP, "schema") == {"status": "gave_up", "steps": 7}, "summary.json, and nothing else"


@pytest.mark.parametrize("words", [[], ["data"]])
def test_no_command_at_all_shows_the_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 0 and "usage: holdfast" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["trian", "c.yaml"], "did you mean train?"),
        (["tiral", "x"], "did you mean trial?"),
        (["staus"], "did you mean status?"),
        (["data", "chekc", "x"], "did you mean check?"),
        (["train", "c.yaml", "--resume"], "an unfinished run goes on by itself"),
        (["train", "c.yaml", "--resume-from-checkpoint=x"], "an unfinished run goes on by itself"),
        (["train", "x.yaml", "--config=c.yaml"], "the config stands without an option"),
        (["train", "c.yaml", "--detch"], "did you mean --detach?"),
    ],
)
def test_what_was_meant_is_named(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == USAGE
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(("word", "near"), [("--only", None), ("--jsn", "--json"), ("--Json", "--json")])
def test_two_dashes_make_no_option_like_another(word: str, near: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    """`--only` was answered with --json: four of its six signs are in that."""
    assert main(["status", word]) == USAGE
    said = capsys.readouterr().err
    assert f"did you mean {near}?" in said if near else "did you mean" not in said
