"""Texts from files and folders that were received: none of them moves a cursor, sets a title or becomes a command."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from conftest import holdfast
from holdfast.base.inert import inert
from holdfast.book.kinds.variable import VariableAdvice
from holdfast.checkup.environment import as_file
from holdfast.run.folder import RunFolder
from holdfast.supervision.standing import look

TITLE, CLIP, CLEAR = "\x1b]0;owned\x07", "\x1b]52;c;ZXZpbA==\x07", "\x1b[2J"


def test_what_a_terminal_would_obey_is_written_out() -> None:
    assert inert(f"a{CLEAR}b\r\x9bc\u202ed\te\nf ü 漢") == "a\\x1b[2Jb\\r\\x9bc\\u202ed\te\nf ü 漢"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "evil"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text('{"id": "1"}')
    held = {"command": f"holdfast train{TITLE} x.yaml", "folder": f"/data/$(touch {tmp_path}/ran){CLEAR}", "host": f"h{CLIP}"}
    (folder / "supervisor.lock").write_text(json.dumps(held))
    (folder / "summary.json").write_text(json.dumps({"status": "gave_up", "reason": f"because {CLEAR}{TITLE}"}))
    return folder


@pytest.mark.parametrize("verb", ["status", "attach", "stop", "diagnose", "report"])
def test_a_run_folder_tells_a_terminal_nothing(run: Path, verb: str) -> None:
    done = holdfast(verb, run, env={"FORCE_COLOR": "1", "TERM": "xterm-256color"})
    said = done.stdout + done.stderr
    assert not any(sign in said for sign in ("\x1b]", "\x07", CLEAR)), said


@pytest.mark.parametrize("command", ["holdfast train x.yaml; touch /tmp/x", "curl x | sh", "holdfast train $(id)", 7, None, "holdfast 'a"])
def test_a_command_that_no_supervisor_wrote_is_not_offered(run: Path, command: object) -> None:
    (run / "supervisor.lock").write_text(json.dumps({"command": command}))
    assert look(RunFolder(run)).holder["command"] is None


def test_a_command_of_ours_is_offered_as_it_is(run: Path) -> None:
    (run / "supervisor.lock").write_text(json.dumps({"command": "holdfast train 'my run.yaml' train.lr=1e-4"}))
    assert look(RunFolder(run)).holder["command"] == "holdfast train 'my run.yaml' train.lr=1e-4"


def test_a_profile_holds_no_command_of_a_machine_file(tmp_path: Path) -> None:
    advice = VariableAdvice("A", "1\n touch ran", f"because\ntouch {tmp_path}/ran", "confirmed", f"x\rtouch {tmp_path}/ran")
    text = as_file([advice], f"for a card\ntouch {tmp_path}/ran\n#")
    subprocess.run(["bash", "-c", text], check=False, cwd=tmp_path)
    assert not (tmp_path / "ran").exists()


LATIN, ASCII = {"PYTHONIOENCODING": "latin-1"}, {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}


@pytest.mark.parametrize("locale", [pytest.param(LATIN, marks=pytest.mark.long), ASCII])
def test_a_locale_that_cannot_print_an_arrow_ends_nothing(tmp_path: Path, locale: dict[str, str]) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"prompt": f"ü{n}", "completion": "→"}) + "\n" for n in range(8)), "utf-8")
    (tmp_path / "run.yaml").write_text("model: tiny\ndata: {files: rows.jsonl}\ntrain: {steps: 3, effective_batch: 2}\n")
    done = holdfast("train", "run.yaml", cwd=tmp_path, env=locale)
    assert done.returncode == 0, done.stderr
    assert holdfast("data", "check", "rows.jsonl", cwd=tmp_path, env=locale).returncode == 0
