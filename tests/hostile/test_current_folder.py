"""A folder with a torch.py or a json.py of its own, somebody's or a stranger's: no command imports them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import make_rows, write_rows

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
    return subprocess.run(command, cwd=folder, input=given, capture_output=True, text=True, check=False, env=dict(os.environ))


def test_no_command_imports_what_lies_in_the_current_folder(folder: Path) -> None:
    for given, *arguments in (
        ("", "train", "run.yaml", "evaluate.generate=1", "run.standby=true"),
        ("", "trial", "runs/run", "--step", "2"),
        ("hello\n", "chat", "runs/run"),
        ("", "data", "check", "rows.jsonl", "--second-look", "tiny"),
        ("", "doctor", "--no-probe"),
    ):
        done = in_it(folder, *arguments, given=given)
        assert not (folder / "imported").exists(), (arguments, (folder / "imported").read_text(), done.stderr)
        assert done.returncode in (0, 1) and "Traceback" not in done.stderr, (arguments, done.stderr)
    assert (folder / "runs" / "run" / "adapter" / "adapter_model.safetensors").exists()
