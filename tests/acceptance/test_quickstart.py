"""The quick start cannot be faked: with the answers shuffled nothing is learned. (`make demo` checks the rest, in CI in its short form.)"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from conftest import ROOT, holdfast, lines, write_rows


def exact_match(folder: Path, shuffled: bool) -> dict[str, Any]:
    """Train the quick start in `folder`; the exact matches on held-out rows."""
    train, held_out = folder / "train.jsonl", folder / "held-out.jsonl"
    assert holdfast("data", "make", "--rows", 1500, "--out", train, "--held-out", held_out).returncode == 0
    if shuffled:
        rows = lines(train)
        answers = [row["output"] for row in rows]
        random.Random(0).shuffle(answers)
        write_rows(train, [row | {"output": answer} for row, answer in zip(rows, answers, strict=True)])
    config = yaml.safe_load((ROOT / "examples" / "quickstart.yaml").read_text())
    config["data"] = {"files": str(train), "held_out_files": str(held_out)}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    done = holdfast("train", folder / "config.yaml", "--run", folder / "run")
    assert done.returncode == 0, done.stderr
    exact: dict[str, Any] = json.loads((folder / "run" / "evaluation.json").read_text())["exact_match"]
    return exact


@pytest.mark.long
def test_the_quick_start_learns(tmp_path: Path) -> None:
    exact = exact_match(tmp_path, shuffled=False)
    assert exact["base"] / exact["asked"] <= 0.02
    assert exact["tuned"] / exact["asked"] >= 0.5


@pytest.mark.long
def test_shuffled_answers_are_not_learned(tmp_path: Path) -> None:
    exact = exact_match(tmp_path, shuffled=True)
    assert exact["tuned"] / exact["asked"] < 0.05
