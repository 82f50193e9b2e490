"""Ranks under what happens to them over days: random deaths, another number of them after each stop, clocks apart, other tasks."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from test_ranks import alone, fault, same, seated, trained  # noqa: F401  (alone is a fixture)

from conftest import events, holdfast, kill, lines, make_rows, start, write_rows, write_table

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("no_leftovers")]


def ranks_of(run: Path) -> list[int]:
    """The living trainers of the newest attempt."""
    newest = max((run / "attempts").glob("*"), default=None)
    found = []
    for file in newest.glob("rank*.json") if newest else []:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            found.append(json.loads(file.read_text())["identity"]["pid"])
    return [pid for pid in found if Path(f"/proc/{pid}").exists()]


@pytest.mark.parametrize("seed", range(15))
def test_twenty_random_deaths_of_ranks_and_other_numbers_of_them_leave_no_trace(
    alone: SimpleNamespace,  # noqa: F811
    seed: int,
) -> None:
    """300 over all seeds. After each third death the run is stopped and goes on with 1, 2 or 4 ranks."""
    chance, name, killed = random.Random(seed), f"deaths-{seed}", 0
    config, run = alone.write(name, steps=60, ranks=2), alone.run.with_name(name)
    if not (alone.run.with_name("sixty") / "summary.json").exists():
        trained(alone.write("sixty", steps=60))
    sizes, supervisor, done = [2], start("train", config, "--run", run), False
    while killed < 20 and not done:
        time.sleep(chance.choice((0.1, 0.5, 1.5)) * chance.random())
        if supervisor.poll() is not None:
            supervisor.communicate()
            done = (run / "summary.json").exists() and json.loads((run / "summary.json").read_text())["status"] == "finished"
            sizes.append(chance.choice((1, 2, 4)))
            supervisor = start("train", config, f"train.ranks={sizes[-1]}", "--run", run)
        elif living := ranks_of(run):
            killed += kill(chance.choice(living))
            if killed % 3 == 0:
                supervisor.send_signal(signal.SIGTERM)
    supervisor.communicate()
    trained(config, f"train.ranks={chance.choice((1, 2, 4))}")
    print(f"{killed} deaths, numbers of ranks {sizes}")
    assert len(set(sizes)) > 1
    summary = json.loads((run / "summary.json").read_text())
    assert summary["artifact_sha256"] == json.loads((alone.run.with_name("sixty") / "summary.json").read_text())["artifact_sha256"]
    assert [row["step"] for row in lines(run / "steps.jsonl")] == list(range(1, 61))
    assert sum(incident["lost_steps"] for incident in summary["incidents"]) == 0


APART = """
import os, time
apart = float(os.environ.get("CLOCK_APART_S", "0"))
now, ns = time.time, time.time_ns
time.time, time.time_ns = lambda: now() + apart, lambda: ns() + int(apart * 1e9)
"""


@pytest.mark.usefixtures("exec_only")
@pytest.mark.parametrize("hours", [-9, 9])
def test_clocks_of_ranks_may_be_hours_apart(alone: SimpleNamespace, tmp_path: Path, hours: int) -> None:  # noqa: F811
    """The second rank's clock is; it is killed on the way, so that both look again at what the other wrote."""
    (tmp_path / "sitecustomize.py").write_text(APART)
    name = f"clocks{hours}"
    config, run = alone.write(name), alone.run.with_name(name)
    faults = config.with_suffix(".faults")
    faults.write_text(fault("kill", rank=1, step=4, phase="backward", attempt=1))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    commands = []
    for rank in (1, 0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
            patch.setenv("CLOCK_APART_S", str(rank * hours * 3600))
            commands.append(seated(config, run, rank, 2, port, "--faults", faults))
    said = [command.communicate(timeout=500)[0] for command in commands]
    assert [command.returncode for command in commands] == [0, 0], said
    same(name, alone)
    summary = json.loads((run / "summary.json").read_text())
    assert summary["attempts"] == 2 and 0 < summary["goodput"] <= 1


def pairs(file: Path) -> Path:
    rows = [{"prompt": row["instruction"], "chosen": row["output"], "rejected": row["output"][::-1] + "?"} for row in make_rows(60)]
    return write_rows(file, rows)


KINDS: dict[str, tuple[Callable[[Path], Path], dict[str, Any]]] = {
    "dpo": (pairs, {"train": {"objective": "dpo"}}),
    "orpo": (pairs, {"train": {"objective": "orpo"}}),
    "dora": (lambda file: write_rows(file, make_rows(60)), {"adapter": {"type": "dora", "r": 4, "dropout": 0.1}}),
    "full": (lambda file: write_rows(file, make_rows(60)), {"adapter": {"type": "full"}}),
    "bf16": (lambda file: write_rows(file, make_rows(60)), {"adapter": {"type": "full"}, "train": {"weights": "bf16"}}),
    "tables": (
        lambda file: write_table(file.with_suffix(".csv"), 120),
        {"task": "tabular", "table": {"target": "y"}, "network": {"hidden": [16, 16], "dropout": 0.1, "exports": []}},
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_other_tasks_and_objectives_have_the_same_bits_on_ranks_of_which_one_is_killed(
    assets: SimpleNamespace, tmp_path: Path, kind: str
) -> None:
    make, more = KINDS[kind]
    tree: dict[str, Any] = {
        "data": {"files": str(make(tmp_path / "rows.jsonl")), "held_out": 0.1},
        "train": {"steps": 6, "effective_batch": 8, "reduction_parts": 4, "lr": 1e-3, "threads": 1} | more.get("train", {}),
        "evaluate": {"every": 3, "generate": 0},
        "run": {"standby": False},
    }
    if kind != "tables":
        tree |= {"model": str(assets.model)}
        tree["train"] |= {"max_tokens": 96}
    config = tmp_path / "c.yaml"
    config.write_text(yaml.safe_dump(tree | {name: value for name, value in more.items() if name != "train"}))
    faults = tmp_path / "faults.json"
    faults.write_text(fault("kill", rank=1, step=4, phase="backward", attempt=1))
    found = {}
    for ranks in (1, 2, 4):
        extra = ["--faults", faults] if ranks > 1 else []
        done = holdfast("train", config, f"train.ranks={ranks}", "--run", tmp_path / f"run{ranks}", "--json", *extra)
        assert done.returncode == 0, done.stderr
        summary = json.loads(done.stdout)
        assert summary["attempts"] == (1 if ranks == 1 else 2)
        found[ranks] = summary["artifact_sha256"]
    assert len(set(found.values())) == 1, found
    replayed = holdfast("trial", tmp_path / "run2", "--step", 5, "--json")
    assert replayed.returncode == 0, replayed.stderr
    row = lines(tmp_path / "run2" / "steps.jsonl")[4]
    assert json.loads(replayed.stdout)["loss"] == row["loss"]
    assert len(events(tmp_path / "run4", "attempt_started")) == 2
