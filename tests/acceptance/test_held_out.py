"""Evaluation on the way: it changes no step, the best state is kept and becomes the adapter, and a kill changes no decision."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from conftest import events, holdfast, kill, lines, make_rows, processes_of, start, wait_until, write_rows
from holdfast.config.config import Evaluate
from holdfast.config.load import load_config
from holdfast.run.evaluations import best_of, stopped_early
from holdfast.run.sampling.step_table import draw_rows
from holdfast.supervision.finish import summary_of
from holdfast.supervision.preparation.lock import held
from holdfast.supervision.preparation.prepare import open_run
from holdfast.terminal.run_view import Terminal
from support.report_pages import charts_of_run
from support.rounding import but_for_rounding

STEPS, EVERY, PATIENCE = 200, 4, 3  # so many steps that three evaluations without improvement come on any processor

pytestmark = pytest.mark.usefixtures("no_leftovers")


@pytest.fixture(scope="module")
def config(assets: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with dropout whose learning rate is too high, so that its held-out loss soon stops falling."""
    folder = tmp_path_factory.mktemp("held-out")
    train = {
        "steps": STEPS,
        "effective_batch": 4,
        "lr": 3e-2,
        "schedule": "constant",
        "warmup": 0,
        "max_tokens": 96,
        "micro_batch_tokens": 80,
        "threads": 1,
    }
    tree = {
        "model": str(assets.model),
        "data": {"files": str(write_rows(folder / "rows.jsonl", make_rows(90))), "held_out": 0.2},
        "adapter": {"r": 4, "dropout": 0.1},
        "train": train,
        "save": {"every": 1000, "keep": 1},
        "evaluate": {"every": EVERY, "patience": PATIENCE, "generate": 0},
    }
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(tree))
    return file


@pytest.fixture(scope="module")
def undisturbed(config: Path) -> SimpleNamespace:
    """What a run nobody disturbed left behind. It ended early, and not at its best step."""
    run = config.parent / "run"
    done = holdfast("train", config, "--run", run, "--json")
    assert done.returncode == 0, done.stderr
    found = SimpleNamespace(run=run, output=done.stderr, summary=json.loads(done.stdout), rows=lines(run / "evaluations.jsonl"))
    assert found.summary["artifact_step"] < found.summary["steps"] < STEPS
    return found


def numbers(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(row["step"], row["loss"], row["labels"], row["best"]) for row in rows]


def check(run: Path, undisturbed: SimpleNamespace) -> None:
    """The same adapter, the same evaluations, the same early end."""
    summary = json.loads((run / "summary.json").read_text())
    assert summary["status"] == "finished"
    assert numbers(lines(run / "evaluations.jsonl")) == numbers(undisturbed.rows)
    for name in ("artifact_sha256", "artifact_step", "stopped_early", "steps"):
        assert summary[name] == undisturbed.summary[name]
    assert hashlib.sha256((run / "adapter/adapter_model.safetensors").read_bytes()).hexdigest() == undisturbed.summary["artifact_sha256"]


def write_faults(file: Path, faults: list[dict[str, Any]]) -> Path:
    file.write_text(yaml.safe_dump({"faults": faults}))
    return file


def test_an_early_end_is_told_everywhere(undisturbed: SimpleNamespace) -> None:
    steps, losses = [row["step"] for row in undisturbed.rows], [row["loss"] for row in undisturbed.rows]
    best = losses.index(min(losses))
    assert steps == list(range(EVERY, EVERY * len(steps) + 1, EVERY))
    assert len(steps) == best + 1 + PATIENCE
    early = undisturbed.summary["stopped_early"]
    assert (early["step"], early["best_step"], early["best_loss"], early["steps"]) == (steps[-1], steps[best], losses[best], STEPS)
    sentence = f"after step {steps[-1]} of {STEPS}: {PATIENCE} evaluations without improvement"
    page = (undisturbed.run / "report.html").read_text()
    assert f"ended early    {sentence}" in undisturbed.output
    assert f"Ended early {sentence}" in page
    assert f"step {steps[best]}: held-out loss {losses[best]:.4f}, the best so far" in undisturbed.output
    assert f"step {steps[best]}, the best by held-out loss" in page
    assert f"step {steps[best]}: held-out loss {losses[best]:.4f}, the lowest" in page
    assert charts_of_run(page) == 7


def test_the_best_state_is_kept_and_is_the_adapter(undisturbed: SimpleNamespace) -> None:
    run, best = undisturbed.run, undisturbed.summary["artifact_step"]
    name = f"step-{best:08d}"
    kept = sorted(entry.name for entry in (run / "checkpoints").glob("step-*"))
    assert kept == [name, f"step-{undisturbed.summary['steps']:08d}"], "the newest one and the best, though none was due"
    assert json.loads((run / "checkpoints/best.json").read_text())["checkpoint"] == name
    weights = [(folder / "adapter_model.safetensors").read_bytes() for folder in (run / "adapter", run / "checkpoints" / name)]
    assert weights[0] == weights[1]
    assert hashlib.sha256(weights[0]).hexdigest() == undisturbed.summary["adapter_sha256"]


def test_the_loss_on_the_way_is_that_of_the_finished_adapter(undisturbed: SimpleNamespace) -> None:
    """Plain PEFT, which knows nothing of our dropout and loads the best state, measures the same."""
    best = next(row for row in undisturbed.rows if row["step"] == undisturbed.summary["artifact_step"])
    assert undisturbed.summary["loss"]["eval_tuned"] == but_for_rounding(best["loss"], 10_000)  # labels times width and layers, about


def test_without_a_schedule_the_mean_is_judged_and_kept_and_training_goes_on_from_the_weights_beside_it(
    config: Path, tmp_path: Path
) -> None:
    changes = ("train.optimizer=schedule_free", "train.lr=0.01", "train.steps=9", "evaluate.patience=null", "evaluate.keep_best=false")
    faults = [{"name": "kill", "when": {"attempt": 1, "step": 6, "phase": "snapshot"}, "effect": "kill"}]
    found = []
    for name, more in (("often", ("evaluate.every=3",)), ("never", ("evaluate.every=null",))):
        file = write_faults(tmp_path / f"{name}.yaml", faults if name == "often" else [])
        done = holdfast("train", config, *changes, *more, "--run", tmp_path / name, "--faults", file, "--json")
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout))
    rows = lines(tmp_path / "often/evaluations.jsonl")
    assert [row["step"] for row in rows] == [3, 6, 9] and found[0]["attempts"] == 2
    assert found[0]["loss"]["eval_tuned"] == but_for_rounding(rows[-1]["loss"], 10_000)
    assert found[0]["artifact_sha256"] == found[1]["artifact_sha256"]


def test_evaluations_change_no_step_and_the_last_state_can_be_had(undisturbed: SimpleNamespace, config: Path, tmp_path: Path) -> None:
    steps = undisturbed.summary["steps"]
    run = tmp_path / "run"
    changes = ("evaluate.patience=null", "evaluate.keep_best=false", "evaluate.every=7", "evaluate.rows=5", f"train.steps={steps}")
    done = holdfast("train", config, *changes, "--run", run, "--json")
    assert done.returncode == 0, done.stderr
    assert [row["loss"] for row in lines(run / "steps.jsonl")] == [row["loss"] for row in lines(undisturbed.run / "steps.jsonl")]
    rows = lines(run / "evaluations.jsonl")
    assert [row["step"] for row in rows] == [*range(7, steps, 7), steps], "the last step is evaluated, too"
    assert 0 < rows[0]["labels"] < undisturbed.rows[0]["labels"]
    summary = json.loads(done.stdout)
    assert (summary["artifact_step"], summary["stopped_early"]) == (steps, None)
    newest = undisturbed.run / f"checkpoints/step-{steps:08d}/adapter_model.safetensors"
    assert summary["artifact_sha256"] == hashlib.sha256(newest.read_bytes()).hexdigest()


def test_kills_around_every_evaluation_change_nothing(undisturbed: SimpleNamespace, config: Path, tmp_path: Path) -> None:
    best = [row["step"] for row in undisturbed.rows if row["best"]]
    others = [row["step"] for row in undisturbed.rows if not row["best"]]
    kills = [(best[0], "evaluate"), (best[0], "evaluated"), (best[0], "best"), (best[-1], "evaluated"), (best[-1], "best")]
    kills += [(best[-1] + 1, "snapshot"), (others[-2], "evaluated"), (others[-1], "evaluate"), (others[-1], "evaluated")]
    faults = [
        {"name": f"{number}", "when": {"attempt": number, "step": step, "phase": phase}, "effect": "kill"}
        for number, (step, phase) in enumerate(kills, 1)
    ]
    run = tmp_path / "run"
    done = holdfast("train", config, "--run", run, "--faults", write_faults(tmp_path / "f.yaml", faults), "--json")
    assert done.returncode == 0, done.stderr
    assert [event["ending"] for event in events(run, "attempt_ended")] == ["killed by SIGKILL"] * len(kills)
    check(run, undisturbed)


def test_without_shim_and_writer_the_trainer_keeps_its_best_itself(undisturbed: SimpleNamespace, config: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    supervisor = start("train", config, "--run", run)
    wait_until(lambda: {"trainer", "writer", "nurse"} <= set(processes_of(run)))
    assert kill(processes_of(run)["nurse"])
    wait_until(lambda: "nurse" not in processes_of(run))
    assert kill(processes_of(run)["writer"])
    output, _ = supervisor.communicate()
    assert supervisor.returncode == 0, output
    ways = [event.get("by") for event in events(run, "checkpoint_saved")]
    assert "the trainer, because no writer lives" in ways, "the writer may have made the first before it was killed"
    check(run, undisturbed)


def test_a_lost_best_state_is_computed_again(undisturbed: SimpleNamespace, config: Path, tmp_path: Path) -> None:
    """The run was given up after its best step; that checkpoint is gone, and so is the snapshot, as after a reboot."""
    best = undisturbed.summary["artifact_step"]
    faults = write_faults(tmp_path / "f.yaml", [{"when": {"step": best + 3}, "effect": "raise"}])
    often = ("save.every=5", "save.keep=3", "run.trials=0")
    assert holdfast("train", config, *often, "--run", tmp_path / "first", "--faults", faults).returncode == 3
    run = tmp_path / "run"
    shutil.copytree(tmp_path / "first", run)
    shutil.rmtree(run / f"checkpoints/step-{best:08d}")
    done = holdfast("train", config, *often, "--run", run)
    assert done.returncode == 0, done.stderr
    assert "it held the best state, and its manifest is missing" in events(run, "checkpoint_passed_over")[-1]["reason"]
    assert events(run, "restored")[-1]["step"] < best
    check(run, undisturbed)


def test_a_best_state_lost_at_the_very_end_is_told(undisturbed: SimpleNamespace, config: Path, tmp_path: Path) -> None:
    best = undisturbed.summary["artifact_step"]
    faults = write_faults(tmp_path / "f.yaml", [{"when": {"step": best, "phase": "save"}, "effect": "corrupt_checkpoint"}])
    done = holdfast("train", config, "--run", tmp_path / "run", "--faults", faults, "--json")
    assert done.returncode == 0, done.stderr
    left = json.loads(done.stdout)["artifact_step"]
    assert left != best
    assert f"the best state, step-{best:08d}, is lost: adapter_model.safetensors does not match its SHA-256" in done.stderr
    assert events(tmp_path / "run", "best_checkpoint_lost")[0]["instead"] == left


def test_ctrl_c_does_not_wait_for_an_evaluation(undisturbed: SimpleNamespace, config: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    first = start("train", config, "--run", run)
    wait_until(lambda: (run / "evaluations.jsonl").exists())
    first.send_signal(2)
    output, _ = first.communicate()
    assert first.returncode == 130, output
    assert holdfast("train", config, "--run", run).returncode == 0
    check(run, undisturbed)


def test_an_extension_of_a_run_that_ended_early_counts_anew(undisturbed: SimpleNamespace, config: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(undisturbed.run, run, symlinks=True)
    done = holdfast("train", config, "--run", run, "--extend", "--json")
    assert done.returncode == 0, done.stderr
    summary, before = json.loads(done.stdout), undisturbed.summary["steps"]
    assert summary["steps"] >= min(before + EVERY * PATIENCE, STEPS)
    assert numbers(lines(run / "evaluations.jsonl"))[: len(undisturbed.rows)] == numbers(undisturbed.rows)


def test_an_extension_has_no_figures_of_the_end_before(undisturbed: SimpleNamespace, config: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(undisturbed.run, run, symlinks=True)
    with held(run) as (folder, _):
        assert summary_of(folder, "finished", None)["loss"]["eval_tuned"] == undisturbed.summary["loss"]["eval_tuned"]
        open_run(folder, load_config(config), True, Terminal(to_stderr=True, quiet=True))
        assert summary_of(folder, "interrupted", None)["loss"]["eval_tuned"] is None


# ---- deciding


def history(*losses: float | None) -> list[dict[str, Any]]:
    return [{"step": 10 * at, "loss": loss} for at, loss in enumerate(losses, 1)]


@pytest.mark.parametrize(
    ("losses", "patience", "min_delta", "since", "best", "stops"),
    [
        ([3.0, 2.0, 1.0], 1, 0.0, 1, 30, False),
        ([3.0, 3.0], 1, 0.0, 1, 10, True),
        ([3.0, 3.1, 2.9, 3.0], 2, 0.0, 1, 30, False),
        ([3.0, 3.1, 3.2], 2, 0.0, 1, 10, True),
        ([3.0, 2.95, 2.9], 2, 0.1, 1, 30, True),
        ([3.0, 2.95, 2.85], 2, 0.1, 1, 30, False),
        ([3.0, None, None], 2, 0.0, 1, 10, True),
        ([None, None], 2, 0.0, 1, None, True),
        ([3.0, 3.1, 3.2, 3.3], 2, 0.0, 31, 10, False),
        ([3.0, 3.1], None, 0.0, 1, 10, False),
    ],
)
def test_when_a_run_has_stopped_improving(
    losses: list[float | None], patience: int | None, min_delta: float, since: int, best: int | None, stops: bool
) -> None:
    rows = history(*losses)
    found = best_of(rows)
    assert (found["step"] if found else None) == best
    assert (stopped_early(rows, Evaluate(every=10, patience=patience, min_delta=min_delta), since) is not None) == stops


def test_rows_are_drawn_by_seed() -> None:
    rows = list(range(100, 200))
    assert draw_rows(rows, None, 0) == rows == draw_rows(rows, 1000, 5)
    drawn = draw_rows(rows, 10, 0)
    assert drawn == draw_rows(rows, 10, 0) == sorted(set(drawn))
    assert len(drawn) == 10 and drawn != draw_rows(rows, 10, 1)


def test_an_evaluation_without_rows_or_interval_is_refused(config_of: Callable[..., Path], tmp_path: Path) -> None:
    done = holdfast("train", config_of(evaluate={"patience": 2, "rows": 5}))
    assert done.returncode == 2 and "rows and patience need every" in done.stderr
    done = holdfast("train", config_of(data={"held_out": 0.0}, evaluate={"every": 5}), "--run", tmp_path / "run")
    assert done.returncode == 1 and "evaluate.every = 5, but no row is held out" in done.stderr
