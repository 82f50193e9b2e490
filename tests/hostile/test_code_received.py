"""Code that lies beside rows or in a model's folder, somebody's or a stranger's: no command runs it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import make_rows, write_rows
from holdfast.base import child
from holdfast.base.child import module_command
from holdfast.base_model.folder import EMBEDDED

NAMES = (
    "torch",
    "numpy",
    "json",
    "random",
    "queue",
    "select",
    "struct",
    "logging",
    "transformers",
    "peft",
    "yaml",
    "orjson",
    "holdfast_own",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(
            f"open({str(tmp_path / 'imported')!r}, 'a').write('{name} ')\nraise SystemExit('{name} ran')\n"
        )
    write_rows(tmp_path / "rows.jsonl", make_rows(12))
    (tmp_path / "run.yaml").write_text("model: tiny\ndata: {files: rows.jsonl, held_out: 0.2}\ntrain: {steps: 2, effective_batch: 2}\n")
    return tmp_path


def in_it(folder: Path, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast", *arguments]
    return subprocess.run(
        command, cwd=folder, input=given, capture_output=True, text=True, check=False, env=os.environ | {"HOLDFAST_TESTS_EXEC": "1"}
    )


COMMANDS = {
    "of a run": (
        ("", "train", "run.yaml", "evaluate.generate=1", "run.standby=true"),
        ("", "trial", "runs/run", "--step", "2"),
        ("hello\n", "chat", "runs/run"),
    ),
    "of rows": (("", "data", "check", "rows.jsonl", "--second-look", "tiny"),),
    "of the machine": (("", "doctor", "--no-probe"),),
}


@pytest.mark.parametrize("commands", list(COMMANDS))
def test_no_command_imports_what_lies_in_the_current_folder(folder: Path, commands: str) -> None:
    for given, *arguments in COMMANDS[commands]:
        done = in_it(folder, *arguments, given=given)
        assert not (folder / "imported").exists(), (arguments, (folder / "imported").read_text(), done.stderr)
        assert done.returncode in (0, 1) and "Traceback" not in done.stderr, (arguments, done.stderr)
    assert commands != "of a run" or (folder / "runs" / "run" / "adapter" / "adapter_model.safetensors").exists()


def test_every_child_of_ours_is_started_by_the_one_way_that_leaves_the_current_folder_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All jobs of the trainer, shim, writer and standby: what the commands above show of some of them."""
    monkeypatch.chdir(tmp_path)
    assert module_command("holdfast.trainer", "train")[1] in ("-P", "-c")
    source = Path(child.__file__).parents[1]
    texts = {file.relative_to(source): file.read_text(encoding="utf-8") for file in source.rglob("*.py")}
    ways = {str(name) for name, text in texts.items() if re.search(r"sys\.executable[^\n]*\"-m\"", text)}
    assert ways == {"base/child.py"}


def test_code_of_a_model_folder_is_not_run_whoever_answers_yes(folder: Path) -> None:
    """Transformers asks on standard input whether it may."""
    for file in NAMES:
        (folder / f"{file}.py").unlink()
    model = folder / "model"
    shutil.copytree(EMBEDDED["tiny"], model)
    config = json.loads((model / "config.json").read_text())
    names = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model", "AutoTokenizer": ["evil.Tokenizer", None]}
    (model / "config.json").write_text(json.dumps(config | {"model_type": "evil", "auto_map": names}))
    (model / "tokenizer_config.json").write_text(json.dumps({"auto_map": {"AutoTokenizer": ["evil.Tokenizer", None]}}))
    (model / "evil.py").write_text(f"open({str(folder / 'imported')!r}, 'w').write('evil')\n")
    done = in_it(folder, "data", "check", "rows.jsonl", "--second-look", "model", given="yes\n" * 9)
    assert done.returncode == 1 and not (folder / "imported").exists(), done.stderr
