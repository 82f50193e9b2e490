"""The power is cut while `learn`, `data clean`, `move` or a supervised command is at work: the same command comes to the same end.

On a small ext4 image, as in test_power_cut.py; skipped where that needs more rights.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conftest import holdfast, make_rows, start, write_config, write_rows
from support.old_runs import settle
from support.power_cut import Disk

LOOP = Path(__file__).parents[1] / "support" / "flushing_trainer.py"
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 20))]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path)
    if not made.mounted:
        pytest.skip("mounting an image needs root and a loop device")
    yield made
    made.unmount()


def cut_while(disk: Disk, draw: random.Random, command: list[Any], most_s: float, **how: Any) -> None:
    """Start a command, cut the power at a drawn moment of it; before, what was written may have been written back."""
    child = start(*command, **how)
    until = time.monotonic() + draw.random() * most_s
    while time.monotonic() < until and child.poll() is None:
        if draw.random() < 0.1:
            disk.flush()
        time.sleep(0.02)
    disk.cut()
    child.communicate()


def policy_on(folder: Path, assets: SimpleNamespace) -> Path:
    (folder / "inbox").mkdir(parents=True)
    write_config(
        assets, folder / "base.yaml", train={"steps": 12, "lr": 1e-2, "max_tokens": 300}, evaluate={"generate": 0}, run={"standby": False}
    )
    write_rows(folder / "held.jsonl", make_rows(60)[40:])
    write_rows(folder / "inbox/1.jsonl", make_rows(40))
    tree = {"name": "helper", "config": "base.yaml", "sources": [{"files": "inbox/*.jsonl"}], "round": {"rows": 40}, "folder": "learned"}
    (folder / "policy.yaml").write_text(json.dumps(tree | {"gate": {"rows": "held.jsonl", "margin": 0.5}}))
    return folder / "policy.yaml"


def learned(policy: Path) -> dict[str, Any]:
    done = holdfast("learn", policy, "--json", cwd=policy.parent, env={"HOLDFAST_MODELS": str(policy.parent / "models.jsonl")})
    assert done.returncode == 0, done.stderr
    [one] = json.loads(done.stdout)["all"]
    return {name: one[name] for name in ("rows", "verdict", "promoted", "version", "adapter_sha256")}


@pytest.fixture(scope="module")
def round_undisturbed(assets: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], float]:
    policy, began = policy_on(tmp_path_factory.mktemp("learn") / "whole", assets), time.monotonic()
    return learned(policy), time.monotonic() - began


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
def test_a_round_goes_on_to_the_same_version(
    seed: int, disk: Disk, round_undisturbed: tuple[dict[str, Any], float], assets: SimpleNamespace
) -> None:
    wanted, took = round_undisturbed
    policy, draw = policy_on(disk.folder / "policy", assets), random.Random(seed)
    disk.flush()
    for _ in range(2):
        env = {"HOLDFAST_MODELS": str(policy.parent / "models.jsonl")}
        cut_while(disk, draw, ["learn", policy, "--rounds", "1"], took, cwd=policy.parent, env=env)
    assert learned(policy) == wanted
    listed = json.loads(holdfast("models", "--json", env={"HOLDFAST_MODELS": str(policy.parent / "models.jsonl")}).stdout)
    assert [one["adapter_sha256"] for one in listed["models"] if one["promoted"]] == [wanted["adapter_sha256"]]


@pytest.mark.parametrize("seed", SEEDS)
def test_cleaned_rows_are_whole_or_absent(seed: int, disk: Disk, tmp_path: Path) -> None:
    draw, rows = random.Random(seed), write_rows(disk.folder / "rows.jsonl", [*make_rows(3000), {"instruction": "a", "output": ""}])
    disk.flush()
    command = ["data", "clean", rows, "--workers", "1", "--out"]
    began = time.monotonic()
    assert holdfast(*command, tmp_path / "whole.jsonl").returncode == 0
    cut_while(disk, draw, [*command, disk.folder / "clean.jsonl"], 1.5 * (time.monotonic() - began))
    made = disk.folder / "clean.jsonl"
    assert not made.exists() or made.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    done = holdfast(*command, made)
    assert done.returncode == 0 and made.read_bytes() == (tmp_path / "whole.jsonl").read_bytes(), done.stderr


@pytest.mark.parametrize("seed", SEEDS)
def test_a_move_that_was_cut_is_repeated(seed: int, disk: Disk, tmp_path: Path) -> None:
    settle(tmp_path / "made", "text-unfinished")
    run, away, draw = tmp_path / "made/runs/text-unfinished", disk.folder / "away", random.Random(seed)
    cut_while(disk, draw, ["move", run, "--to", away], 3.0)
    sent = holdfast("move", run, "--to", away)
    assert sent.returncode == 0, sent.stderr
    disk.cut()
    back = holdfast("move", away, "--to", tmp_path / "back")
    assert back.returncode == 0, back.stderr
    for name in ("steps.jsonl", "plan.json", "timeline.jsonl", "data.safetensors"):
        assert (tmp_path / "back" / name).read_bytes() == (run / name).read_bytes(), name


@pytest.mark.parametrize("seed", SEEDS)
def test_a_command_that_was_cut_goes_on_to_its_end(seed: int, disk: Disk) -> None:
    draw, out, run = random.Random(seed), disk.folder / "out", disk.folder / "run"
    command = ["run", "--run", run, "--json", "--checkpoints", out, "--", sys.executable, LOOP, "--output_dir", out, "--steps", 30]
    cut_while(disk, draw, command, 6.0)
    done = holdfast(*command)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["status"] == "finished" and summary["steps"] == 30, summary


def test_what_the_verbs_on_rows_and_configs_wrote_is_on_the_disk(disk: Disk, assets: SimpleNamespace) -> None:
    made, rows = disk.folder / "made", write_rows(disk.folder / "rows.jsonl", make_rows(60))
    made.mkdir()
    log = made / "log.jsonl"
    write_rows(log, [{"request": {"messages": [{"role": "user", "content": f"q{n}"}]}, "response": f"a{n}"} for n in range(9)])
    disk.flush()
    for words in (
        ["init", "--model", assets.model, "--data", rows, "--out", made / "first.yaml"],
        ["data", "split", rows, "--into", f"{made}/a.jsonl=0.5", "--into", f"{made}/b.jsonl=rest"],
        ["data", "sample", rows, "--rows", 5, "--out", made / "sample.jsonl"],
        ["data", "make", "--rows", 12, "--out", made / "made.jsonl"],
        ["data", "collect", log, "--out", made / "collected.jsonl"],
    ):
        done = holdfast(*words)
        assert done.returncode == 0, f"{words}: {done.stderr}"
        before = {file.name: file.read_bytes() for file in made.iterdir()}
        disk.cut()
        assert {file.name: file.read_bytes() for file in made.iterdir() if before.get(file.name)} == {
            k: v for k, v in before.items() if v
        }, words
