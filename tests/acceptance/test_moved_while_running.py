"""A run folder that is renamed, or whose parent is, while its run goes on: the run goes on there, to the same bits."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from conftest import holdfast, kill, lines, processes_of, start, wait_until

STEPS = 20
pytestmark = pytest.mark.usefixtures("no_leftovers")


def slow(assets: SimpleNamespace, tmp_path: Path, every: int = 5) -> list[Any]:
    train = {"steps": STEPS, "effective_batch": 4, "lr": 1e-3, "max_tokens": 96, "threads": 1}
    save = {"every": every}
    tree = {"model": str(assets.model), "data": {"files": [str(assets.rows)]}, "adapter": {"r": 4}, "train": train, "save": save}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(tree | {"evaluate": {"generate": 0}, "run": {"standby": False}}))
    faults = [{"when": {"step": step, "attempt": 1}, "effect": "slow", "seconds": 0.2} for step in range(6, 16)]
    (tmp_path / "f.yaml").write_text(json.dumps(faults))
    return ["train", tmp_path / "c.yaml"]


def begun(command: list[Any], run: Path, tmp_path: Path) -> Any:
    child = start(*command, "--run", run, "--faults", tmp_path / "f.yaml")
    wait_until(lambda: (run / "steps.jsonl").exists() and len(lines(run / "steps.jsonl")) >= 7)
    return child


@pytest.mark.parametrize(("name", "then"), [("runs/a", "runs/b"), ("runs", "elsewhere")], ids=["the folder", "its parent"])
def test_a_run_goes_on_where_its_folder_was_moved_to(assets: SimpleNamespace, tmp_path: Path, name: str, then: str) -> None:
    command, run = slow(assets, tmp_path), tmp_path / "runs/a"
    child = begun(command, run, tmp_path)
    (tmp_path / name).rename(tmp_path / then)
    output, _ = child.communicate()
    assert child.returncode == 0, output
    now = tmp_path / then / ("" if name == "runs/a" else "a")
    assert f"{run} was moved to {now}: the run goes on there" in output and "removed" not in output
    assert not (tmp_path / name).is_symlink() and not (tmp_path / name).exists(), "the link is gone at the end"
    assert [row["step"] for row in lines(now / "steps.jsonl")] == list(range(1, STEPS + 1))
    whole = json.loads(holdfast(*command, "--run", tmp_path / "whole", "--json").stdout)
    assert json.loads((now / "summary.json").read_text())["artifact_sha256"] == whole["artifact_sha256"]


def test_one_that_was_moved_after_all_its_processes_died_comes_to_the_same_bits(assets: SimpleNamespace, tmp_path: Path) -> None:
    command, run = slow(assets, tmp_path, every=100), tmp_path / "runs/a"
    child = begun(command, run, tmp_path)
    child.kill()
    for pid in processes_of(run).values():
        kill(pid)
    child.communicate()
    wait_until(lambda: not processes_of(run))
    now = run.rename(tmp_path / "runs/b")
    done = holdfast(*command, "--run", now, "--json")
    assert done.returncode == 0, done.stderr
    whole = json.loads(holdfast(*command, "--run", tmp_path / "whole", "--json").stdout)
    assert json.loads(done.stdout)["artifact_sha256"] == whole["artifact_sha256"]


def test_a_command_goes_on_where_the_folder_of_its_logs_was_moved_to(tmp_path: Path) -> None:
    steps = "import time\nfor step in range(1, 31):\n    print(f'step {step}/30', flush=True)\n    time.sleep(0.1)\n"
    run = tmp_path / "runs/a"
    child = start("run", "--run", run, "--", sys.executable, "-c", steps)
    wait_until(lambda: (run / "progress.jsonl").exists())
    now = run.rename(tmp_path / "runs/b")
    output, _ = child.communicate()
    assert child.returncode == 0, output
    summary = json.loads((now / "summary.json").read_text())
    assert (summary["status"], summary["steps"], summary["attempts"]) == ("finished", 30, 1)
    assert not run.exists() and not run.is_symlink()
