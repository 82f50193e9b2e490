"""Real SIGKILLs, of every process and at every named point: always finished, the same weights, each step one row."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from conftest import events, holdfast, kill, lines, make_rows, processes_of, start, wait_until, write_rows, write_table

STEPS = 100
TRAINER_POINTS = ("start", "forward", "backward", "optimizer", "snapshot", "commit")

pytestmark = pytest.mark.usefixtures("no_leftovers")


@pytest.fixture(
    scope="module", params=["sft", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("two threads", "side by side", "tabular"))]
)
def undisturbed(request: pytest.FixtureRequest, assets: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A config with dropout, packing, accumulation, checkpointing and evaluation on, and the result of a run nobody disturbed."""
    folder = tmp_path_factory.mktemp("kills")
    train = {"steps": STEPS, "effective_batch": 4, "lr": 1e-3, "threads": 1}
    train |= {"two threads": {"threads": 2}, "side by side": {"threads": 2, "parts_at_once": 2}}.get(request.param, {})
    tree: dict[str, Any]
    if request.param != "tabular":
        rows = write_rows(folder / "rows.jsonl", make_rows(90))
        tree = {
            "model": str(assets.model),
            "adapter": {"r": 4, "dropout": 0.1},
            "train": train | {"max_tokens": 96, "micro_batch_tokens": 80, "checkpointed_layers": 1},
        }
    else:
        rows = write_table(folder / "rows.csv", 90)
        tree = {
            "task": "tabular",
            "table": {"target": "y"},
            "network": {"hidden": [16, 16], "dropout": 0.1, "exports": []},
            "train": train | {"micro_batch_tokens": 3},
        }
    tree |= {"data": {"files": str(rows), "held_out": 0.1}, "save": {"every": 5}, "evaluate": {"every": 20}}
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump(tree))
    done = holdfast("train", config, "--run", folder / "run", "--json")
    assert done.returncode == 0, done.stderr
    return SimpleNamespace(config=config, sha256=json.loads(done.stdout)["artifact_sha256"], steps=lines(folder / "run" / "steps.jsonl"))


def check(run: Path, undisturbed: SimpleNamespace) -> None:
    """Finished, the same bits, every step exactly one row with the same numbers."""
    summary = json.loads((run / "summary.json").read_text())
    assert summary["status"] == "finished"
    rows = lines(run / "steps.jsonl")
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    numbers = ("loss", "grad_norm", "lr", "samples")
    assert [[row[name] for name in numbers] for row in rows] == [[row[name] for name in numbers] for row in undisturbed.steps]
    assert summary["artifact_sha256"] == undisturbed.sha256
    made = next(file for name in ("adapter_model", "model") if (file := run / "artifact" / f"{name}.safetensors").exists())
    assert hashlib.sha256(made.read_bytes()).hexdigest() == undisturbed.sha256


def write_faults(file: Path, faults: list[dict[str, Any]]) -> Path:
    file.write_text(yaml.safe_dump({"faults": faults}))
    return file


@pytest.mark.parametrize("rounds", [1, pytest.param(5, marks=pytest.mark.long)])
def test_the_trainer_killed_at_every_named_point(undisturbed: SimpleNamespace, tmp_path: Path, rounds: int) -> None:
    """Kills in a row, the points in turn, each a step or two further on."""
    points = list(TRAINER_POINTS) * rounds
    faults = [{"name": f"{at}-{point}", "when": {"attempt": at, "phase": point}, "effect": "kill"} for at, point in enumerate(points, 1)]
    for at, fault in enumerate(faults):
        if fault["when"]["phase"] != "start":
            fault["when"]["step"] = 2 + 3 * at
    run = tmp_path / "run"
    done = holdfast("train", undisturbed.config, "--run", run, "--faults", write_faults(tmp_path / "faults.yaml", faults), "--json")
    assert done.returncode == 0, done.stderr
    ended = [event["ending"] for event in events(run, "attempt_ended")]
    assert ended == ["killed by SIGKILL"] * len(points)
    summary = json.loads(done.stdout)
    assert len(summary["incidents"]) == len(points)
    assert sum(incident["lost_steps"] for incident in summary["incidents"]) == 0, "no committed step is computed again"
    check(run, undisturbed)


@pytest.mark.parametrize("point", ["save", "saved"])
def test_the_writer_killed_before_and_after_its_rename(undisturbed: SimpleNamespace, tmp_path: Path, point: str) -> None:
    """The shim starts the writer again each time, and each time it is killed at the same place; training goes on."""
    fault = {"name": "writer dies", "when": {"phase": point, "step": 10}, "effect": "kill", "message": "writer dies"}
    run = tmp_path / "run"
    slow_enough = write_faults(tmp_path / "faults.yaml", [fault, {"when": {"attempt": 1, "step": 95, "phase": "commit"}, "effect": "kill"}])
    done = holdfast("train", undisturbed.config, "--run", run, "--faults", slow_enough, "--json")
    assert done.returncode == 0, done.stderr
    deaths = sum((run / f"attempts/{number}/output.log").read_text().count("writer dies") for number in ("001", "002"))
    assert deaths >= 3, "started again, more slowly each time"
    check(run, undisturbed)


# Kills itself between writing an attempt down and starting its shim.
SUPERVISOR_THAT_DIES = """
import os, signal, sys
from holdfast.processes import process
process.start_shim = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
from holdfast.cli.main import main
main(sys.argv[1:])
"""


def test_the_supervisor_killed_between_writing_and_starting_an_attempt(undisturbed: SimpleNamespace, tmp_path: Path) -> None:
    run, kills = tmp_path / "run", 2
    for _ in range(kills):
        command = [sys.executable, "-c", SUPERVISOR_THAT_DIES, "train", str(undisturbed.config), "--run", str(run)]
        assert subprocess.run(command, capture_output=True, check=False).returncode == -9
    assert not processes_of(run)
    done = holdfast("train", undisturbed.config, "--run", run)
    assert done.returncode == 0, done.stderr
    assert len(events(run, "attempt_ended")) == kills
    check(run, undisturbed)


def test_a_living_trainer_is_adopted_and_not_started_again(undisturbed: SimpleNamespace, tmp_path: Path) -> None:
    run = tmp_path / "run"
    first = start("train", undisturbed.config, "--run", run)
    wait_until(lambda: (run / "steps.jsonl").exists())
    kill(first.pid)
    first.communicate()
    assert "trainer" in processes_of(run)
    again = holdfast("train", undisturbed.config, "--run", run)
    assert again.returncode == 0, again.stderr
    assert len(events(run, "attempt_started")) == 1
    check(run, undisturbed)


def test_a_trainer_whose_shim_died_goes_on(undisturbed: SimpleNamespace, tmp_path: Path) -> None:
    run = tmp_path / "run"
    supervisor = start("train", undisturbed.config, "--run", run)
    wait_until(lambda: "trainer" in processes_of(run))
    assert kill(processes_of(run)["nurse"])
    supervisor.communicate()
    assert supervisor.returncode == 0
    assert len(events(run, "attempt_started")) == 1
    check(run, undisturbed)


def kill_at_random(undisturbed: SimpleNamespace, run: Path, wanted: int, chance: random.Random, *settings: str) -> Counter[str]:
    """Kill a random process of a run after a random while, until `wanted` were hit or it finished; then let it finish."""
    hits: Counter[str] = Counter()
    supervisor = start("train", undisturbed.config, *settings, "--run", run)
    while hits.total() < wanted:
        time.sleep(chance.choice((0.1, 0.5, 2.0, 6.0)) * chance.random())
        if supervisor.poll() is not None:
            supervisor.communicate()
            if (run / "summary.json").exists() and json.loads((run / "summary.json").read_text())["status"] == "finished":
                break
            supervisor = start("train", undisturbed.config, *settings, "--run", run)
            continue
        living = {"supervisor": supervisor.pid} if chance.random() < 0.2 else processes_of(run)
        if living:  # nothing is there yet while the run is prepared, and a standby takes long to come
            target = chance.choice(sorted(living))
            hits[target] += kill(living[target])
    if supervisor.stdout is not None and not supervisor.stdout.closed:
        supervisor.communicate()
    done = holdfast("train", undisturbed.config, *settings, "--run", run)
    assert done.returncode == 0, done.stderr
    return hits


def kill_through_runs(undisturbed: SimpleNamespace, folder: Path, wanted: int, seed: int, *settings: str) -> Counter[str]:
    """One run after the other, each killed up to twenty times, each checked, until `wanted` kills have hit."""
    chance = random.Random(seed)
    hits: Counter[str] = Counter()
    for number in itertools.count():
        if hits.total() >= wanted:
            break
        run = folder / f"run-{number}"
        hits += kill_at_random(undisturbed, run, min(20, wanted - hits.total()), chance, *settings)
        check(run, undisturbed)
    print(dict(hits))
    return hits


@pytest.mark.parametrize("kills", [5, pytest.param(15, marks=pytest.mark.long)])
def test_any_process_killed_at_random_times(undisturbed: SimpleNamespace, tmp_path: Path, kills: int) -> None:
    assert kill_through_runs(undisturbed, tmp_path, wanted=kills, seed=1).total() == kills


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
def test_a_thousand_random_kills(undisturbed: SimpleNamespace, tmp_path: Path, seed: int) -> None:
    """In turn: snapshots in memory or on disk, a standby that takes over or none."""
    (tmp_path / "snapshots").mkdir()
    place = [f"save.snapshot_dir={tmp_path / 'snapshots'}"] if seed % 4 >= 2 else []
    standby = seed % 2 == 1
    hits = kill_through_runs(undisturbed, tmp_path, 50, 100 + seed, f"run.standby={str(standby).lower()}", *place)
    assert set(hits) >= {"supervisor", "nurse", "trainer", "writer"}
    assert standby == any(role.startswith("standby") for role in hits)


def test_ctrl_c_finishes_the_step_saves_and_exits_130(undisturbed: SimpleNamespace, tmp_path: Path) -> None:
    run = tmp_path / "run"
    first = start("train", undisturbed.config, "--run", run)
    wait_until(lambda: (run / "steps.jsonl").exists())
    first.send_signal(2)
    output, _ = first.communicate()
    assert first.returncode == 130, output
    assert "rerun the same command to resume" in output
    committed = lines(run / "steps.jsonl")[-1]["step"]
    assert (run / "checkpoints" / f"step-{committed:08d}" / "manifest.json").exists()
    assert json.loads((run / "summary.json").read_text())["status"] == "interrupted"
    wait_until(lambda: not processes_of(run))  # the writer looks a moment later that there is nothing left to write
    assert holdfast("train", undisturbed.config, "--run", run).returncode == 0
    check(run, undisturbed)


@pytest.mark.parametrize("effect", ["nan_loss", "nan_grad"])
def test_a_nan_that_does_not_come_back_costs_one_attempt(undisturbed: SimpleNamespace, tmp_path: Path, effect: str) -> None:
    run = tmp_path / "run"
    faults = write_faults(tmp_path / "f.yaml", [{"name": "nan", "when": {"attempt": 1, "step": 7}, "effect": effect}])
    done = holdfast("train", undisturbed.config, "--run", run, "--faults", faults, "--json")
    assert done.returncode == 0, done.stderr
    incident = json.loads(done.stdout)["incidents"][0]
    assert (incident["step"], incident["cause"], incident["lost_steps"]) == (7, "nonfinite_numerics", 0)
    assert incident["samples"] == undisturbed.steps[6]["samples"]
    check(run, undisturbed)


def test_a_failure_that_always_comes_back_ends_the_run_with_its_reason(undisturbed: SimpleNamespace, tmp_path: Path) -> None:
    run = tmp_path / "run"
    message = "HIPBLAS_STATUS_INTERNAL_ERROR when calling hipblasLtMatmul"
    fault = {"name": "always", "when": {"step": 9}, "effect": "raise", "message": message}
    faults = write_faults(tmp_path / "f.yaml", [fault])
    done = holdfast("train", undisturbed.config, "run.trials=0", "--run", run, "--faults", faults, "--json")
    assert done.returncode == 3
    assert json.loads(done.stdout) == json.loads((run / "summary.json").read_text())
    assert "gave up: 3 attempts in a row" in done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert "the state after step 8 is kept" in done.stderr
    assert "blas_library_failure (" in done.stderr and "all of it: holdfast diagnose" in done.stderr
    assert json.loads((run / "summary.json").read_text())["status"] == "gave_up"
    assert holdfast("train", undisturbed.config, "--run", run).returncode == 0, "with the cause gone, rerun the same command to resume"
    check(run, undisturbed)
