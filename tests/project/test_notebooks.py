"""The notebooks of examples/notebooks, cell by cell in one namespace; `%%writefile NAME` and `!command` as IPython has them."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import ROOT

NOTEBOOKS = ROOT / "examples" / "notebooks"
FIRST, TRAINER, DIED = "1-first-run", "2-protect-your-trainer", "3-go-on-after-the-session-died"


def cells(name: str) -> list[str]:
    tree = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))
    assert not any(cell.get("outputs") for cell in tree["cells"]), "a notebook is kept without what it printed"
    return ["".join(cell["source"]) for cell in tree["cells"] if cell["cell_type"] == "code"]


def run_notebook(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run the cells in `folder`; their names."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in cells(name):
        if cell.startswith("%%writefile "):
            file, _, text = cell.removeprefix("%%writefile ").partition("\n")
            Path(file.strip()).write_text(text, encoding="utf-8")
        elif cell.startswith("!"):
            subprocess.run(cell[1:], shell=True, check=True)
        else:
            exec(compile(cell, name, "exec"), names)
    return names


def test_the_notebooks_are_these_and_are_python() -> None:
    assert sorted(file.stem for file in NOTEBOOKS.glob("*.ipynb")) == [FIRST, TRAINER, DIED]
    for name in (FIRST, TRAINER, DIED):
        for cell in cells(name):
            ast.parse(cell.partition("\n")[2] if cell.startswith("%%") else "" if cell.startswith("!") else cell)


def test_the_first_run_finishes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = run_notebook(FIRST, tmp_path, monkeypatch)
    assert names["run"].status == "finished" and len(names["run"].losses) == 12


@pytest.mark.long
def test_a_trainer_that_died_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_notebook(TRAINER, tmp_path, monkeypatch)
    summary = json.loads((tmp_path / "runs" / "trainer" / "summary.json").read_text())
    assert (summary["status"], summary["steps"], summary["attempts"]) == ("finished", 12, 2)


@pytest.mark.long
def test_a_run_whose_folder_is_gone_goes_on_from_the_second_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_notebook(DIED, tmp_path, monkeypatch)["run"]
    assert run.status == "finished" and len(run.losses) == 12
    assert (tmp_path / "drive" / "first").is_dir()
