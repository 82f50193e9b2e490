"""TRL's GRPO under `holdfast run --callback`: it samples, learns and ends as a run that nobody killed. Skipped without TRL."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from conftest import ROOT, holdfast

pytest.importorskip("trl")
SCRIPT = str(ROOT / "tests/support/grpo_trainer.py")


@pytest.mark.long
def test_a_grpo_run_that_is_killed_twice_ends_with_the_same_bits(assets: SimpleNamespace, tmp_path: Path) -> None:
    words = [sys.executable, SCRIPT, str(assets.model), "out"]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HOLDFAST_SNAPSHOT_SHARE": "1e9"}
    for name in ("alone", "held/kills"):
        (tmp_path / name).mkdir(parents=True)
    alone = subprocess.run(words, cwd=tmp_path / "alone", capture_output=True, text=True, check=False, env=environment)
    assert alone.returncode == 0, alone.stderr
    held = holdfast("run", "--run", "run", "--callback", "--", *words, cwd=tmp_path / "held", env=environment)
    assert held.returncode == 0, held.stderr
    weights, rewards = [], []
    for place, told in (("alone", alone.stdout), ("held", held.stdout)):
        weights.append(re.findall(r"weights \w+", told)[-1])
        state = json.loads((tmp_path / place / "out/checkpoint-8/trainer_state.json").read_text())
        rewards.append({row["step"]: row["reward"] for row in state["log_history"] if "reward" in row})
    assert weights[0] == weights[1], held.stderr
    assert rewards[1] == rewards[0] and len(set(rewards[1].values())) > 2, "what it sampled, a row for each step"
    summary = json.loads((tmp_path / "held/run/summary.json").read_text())
    assert (summary["attempts"], summary["steps"], summary["doubt"]) == (3, 8, None)
    assert (summary["steps_computed_twice"], summary["steps_computed_twice_exact"]) == (0, True)
