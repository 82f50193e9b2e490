"""Damaged folders of every kind of run there is: tables, other commands, ranks, full bf16 weights, quantised bases, preferences, save.to.

As in test_damaged.py, whose run folders are those of a LoRA run that died once; a handful of each with the long tests alone.
"""

from __future__ import annotations

import functools
import json
import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from conftest import holdfast, write_rows, write_table
from support.damage import copied, spoil_some
from support.hostile import answers, fresh, prepared, tried

TRAINER = Path(__file__).parents[1] / "support" / "fake_trainer.py"
TABLE: dict[str, Any] = {
    "task": "tabular",
    "table": {"target": "y"},
    "network": {"kind": "residual", "hidden": "8", "exports": []},
    "train": {"steps": 4, "effective_batch": 8, "threads": 1},
}
PAIR = {"prompt": "2+2?", "chosen": "4", "rejected": "5"}
DIES = {"faults": [{"name": "dies", "when": {"step": 2, "attempt": 1, "rank": 1}, "effect": "kill"}]}
RUNS: dict[str, tuple[dict[str, Any], int]] = {  # what is different about it; how many in the long part
    "table": (TABLE, 300),
    "bf16": ({"adapter": {"type": "full"}, "train": {"weights": "bf16", "precision": "bf16", "optimizer": "lion"}}, 200),
    "quantised": ({"train": {"frozen": "nf4", "optimizer": "adamw8bit"}}, 200),
    "ranks": ({"train": {"ranks": 2, "reduction_parts": 4, "spot_check": 2}} | DIES, 200),
    "sharded": ({"train": {"ranks": 2, "reduction_parts": 2, "fsdp": True}}, 100),
    "averaged": ({"train": {"optimizer": "schedule_free"}}, 100),
    "preferences": ({"train": {"objective": "dpo"}}, 200),
    "elsewhere": ({"save": {"to": "FOLDER/away"}}, 200),
}


class Good:
    """A finished run of each kind, made when it is first asked for."""

    def __init__(self, folder: Path, assets: SimpleNamespace) -> None:
        self.folder, self.assets = folder, assets

    @functools.cache  # noqa: B019  as long as the module's fixture
    def run(self, kind: str) -> tuple[Path, Path | None]:
        """Its folder, and its config: a command has none."""
        run, config = self.folder / kind, self.folder / f"{kind}.yaml"
        if kind == "command":
            done = holdfast(
                "run", "--run", run, "--", sys.executable, TRAINER, "--output_dir", "out", "--faults", "torn:4:1", cwd=self.folder
            )
        else:
            config.write_text(yaml.safe_dump(self._tree(kind)))
            done = holdfast("train", config, "--run", run)
        assert done.returncode == 0, done.stderr
        return run, None if kind == "command" else config

    def _tree(self, kind: str) -> dict[str, Any]:
        own = json.loads(json.dumps(RUNS[kind][0]).replace("FOLDER", str(self.folder)))
        if kind == "table":
            return own | {"data": {"files": [str(write_table(self.folder / "table.csv", 60))], "held_out": 0.2}}
        rows = write_rows(self.folder / "pairs.jsonl", [PAIR] * 12) if kind == "preferences" else self.assets.rows
        tree: dict[str, Any] = {
            "model": str(self.assets.model),
            "data": {"files": [str(rows)], "held_out": 0.1},
            "adapter": {"r": 2},
            "train": {"steps": 4, "effective_batch": 4, "max_tokens": 96, "threads": 1},
            "evaluate": {"every": 2, "generate": 1},
            "save": {"every": 2},
            "run": {"standby": False},
        }
        return {name: tree[name] | own.get(name, {}) if isinstance(tree[name], dict) else tree[name] for name in tree} | {
            name: value for name, value in own.items() if name not in tree
        }


def try_run(kind: str, seed: int, good: Good, place: Path) -> None:
    rng = random.Random(seed)
    whole, config = good.run(kind)
    run = copied(whole, place / "received" / "run")
    what = f"{kind}, seed {seed}: {spoil_some(run, rng, lambda file: file.suffix != '.safetensors' or rng.random() < 0.3)}"
    answers(what, "status", run, "--json")
    answers(what, "diagnose", run, "--json")
    answers(what, "report", run, "--out", place / "report.html")
    answers(what, "bundle", run, "--out", place / "bundle.zip")
    if rng.random() < 0.2:
        answers(what, "stop", run)
    if config and rng.random() < 0.3:
        prepared(what, config, run)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory, assets: SimpleNamespace) -> Good:
    return Good(tmp_path_factory.mktemp("good"), assets)


@pytest.mark.long
@pytest.mark.parametrize(("kind", "count"), [*((kind, count) for kind, (_, count) in RUNS.items()), ("command", 400)])
def test_damaged_runs_of_every_kind_are_answered_from_fresh_seeds(kind: str, count: int, good: Good, tmp_path: Path) -> None:
    if kind == "quantised":
        pytest.importorskip("bitsandbytes")
    tried(lambda seed, place: try_run(kind, seed, good, place), fresh(count), tmp_path)
