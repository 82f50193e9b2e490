"""A checkpoint that is not what its manifest says is passed over with an event; with none left the run ends clearly."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from conftest import events, holdfast, lines, make_rows, write_rows
from holdfast.diagnosis.divergence import FROM_THE_START


@pytest.fixture(scope="module")
def stopped(assets: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A run that gave up at step 11 with checkpoints of steps 4, 8 and 10, and the same run undisturbed."""
    folder = tmp_path_factory.mktemp("broken")
    rows = write_rows(folder / "rows.jsonl", make_rows(60))
    tree = {
        "model": str(assets.model),
        "data": {"files": str(rows), "held_out": 0.1},
        "train": {"steps": 12, "effective_batch": 4, "lr": 1e-3, "max_tokens": 96, "threads": 1},
        "save": {"every": 4, "keep": 5},
        "run": {"trials": 0},
    }
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump(tree))
    whole = holdfast("train", config, "--run", folder / "whole", "--json")
    faults = folder / "faults.yaml"
    faults.write_text(yaml.safe_dump([{"when": {"step": 11}, "effect": "raise", "message": "boom"}]))
    assert holdfast("train", config, "--run", folder / "run", "--faults", faults).returncode == 3
    steps = sorted(entry.name for entry in (folder / "run" / "checkpoints").iterdir())
    assert steps == ["step-00000004", "step-00000008", "step-00000010"]
    return SimpleNamespace(config=config, run=folder / "run", sha256=json.loads(whole.stdout)["artifact_sha256"])


@pytest.fixture
def run(stopped: SimpleNamespace, tmp_path: Path) -> Path:
    """A copy of the stopped run. Another folder has another snapshot name, so only its checkpoints are left, as after a reboot."""
    shutil.copytree(stopped.run, tmp_path / "run")
    return tmp_path / "run"


def truncate(run: Path) -> None:
    file = run / "checkpoints/step-00000010/state.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def tear(run: Path) -> None:
    (run / "checkpoints/step-00000010/manifest.json").unlink()


def flip_a_bit(run: Path) -> None:
    file = run / "checkpoints/step-00000010/adapter_model.safetensors"
    data = bytearray(file.read_bytes())
    data[-5] ^= 4
    file.write_bytes(data)


def swap_folders(run: Path) -> None:
    ten, eight = run / "checkpoints/step-00000010", run / "checkpoints/step-00000008"
    ten.rename(run / "aside")
    eight.rename(ten)
    (run / "aside").rename(eight)


def swap_files(run: Path) -> None:
    shutil.copy(run / "checkpoints/step-00000004/state.safetensors", run / "checkpoints/step-00000010/state.safetensors")


def from_another_run(run: Path) -> None:
    file = run / "checkpoints/step-00000010/manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"run": "0" * 32}))


DAMAGES: list[tuple[Callable[[Path], None], str, int]] = [
    (truncate, "state.safetensors has", 8),
    (tear, "manifest is missing", 8),
    (flip_a_bit, "adapter_model.safetensors does not match its SHA-256", 8),
    (swap_folders, "manifest is of step", 4),
    (swap_files, "state.safetensors does not match its SHA-256", 8),
    (from_another_run, "belongs to another run", 8),
]


@pytest.mark.parametrize(("damage", "reason", "restored"), DAMAGES, ids=lambda value: getattr(value, "__name__", ""))
def test_a_damaged_checkpoint_is_passed_over(
    stopped: SimpleNamespace, run: Path, damage: Callable[[Path], None], reason: str, restored: int
) -> None:
    damage(run)
    done = holdfast("train", stopped.config, "--run", run, "--json")
    assert done.returncode == 0, done.stderr
    passed = events(run, "checkpoint_passed_over")
    assert passed[0]["checkpoint"] == "step-00000010"
    assert reason in passed[0]["reason"]
    assert events(run, "restored")[-1]["step"] == restored
    assert json.loads(done.stdout)["artifact_sha256"] == stopped.sha256
    assert [row["step"] for row in lines(run / "steps.jsonl")] == list(range(1, 13)), "steps computed again count once"


def unlink_states(run: Path) -> None:
    for folder in (run / "checkpoints").iterdir():
        (folder / "state.safetensors").unlink()


def flip_bits(run: Path) -> None:
    for folder in (run / "checkpoints").iterdir():
        data = bytearray((folder / "state.safetensors").read_bytes())
        data[-1] ^= 1
        (folder / "state.safetensors").write_bytes(data)


def remove_checkpoints(run: Path) -> None:
    shutil.rmtree(run / "checkpoints")


@pytest.mark.parametrize("lose", [unlink_states, flip_bits, remove_checkpoints])
def test_with_no_state_left_a_short_run_begins_again_and_comes_to_the_same_bits(
    stopped: SimpleNamespace, run: Path, lose: Callable[[Path], None]
) -> None:
    lose(run)
    before = (run / "steps.jsonl").read_bytes()
    done = holdfast("train", stopped.config, "--run", run, "--json")
    assert done.returncode == 0, done.stderr
    assert "10 steps were committed, but no state of them can be read" in done.stderr
    assert "beginning again, which computes 10 steps once more" in done.stderr
    assert json.loads(done.stdout)["artifact_sha256"] == stopped.sha256
    assert (run / "rollbacks/001/steps.jsonl").read_bytes() == before, "what was computed is kept on record"
    assert [row["step"] for row in lines(run / "steps.jsonl")] == list(range(1, 13))


def test_where_the_beginning_is_far_the_way_on_is_told_with_its_price(stopped: SimpleNamespace, run: Path) -> None:
    remove_checkpoints(run)
    rows = lines(run / "steps.jsonl")
    more = [rows[-1] | {"step": step, "seconds": 10.0} for step in range(len(rows) + 1, FROM_THE_START + 2)]
    (run / "steps.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, *more]))
    done = holdfast("train", stopped.config, "--run", run)
    assert done.returncode == 3
    assert "no step was committed" not in done.stderr and "of 241 committed steps no state is left" in done.stderr
    assert "begin again with --run DIR, another folder: that computes 241 steps once more, which took 39 min" in done.stderr
    assert "then rerun the same command to resume" not in done.stderr and not (run / "rollbacks").exists()


@pytest.mark.parametrize("effect", ["corrupt_checkpoint", "torn_checkpoint"])
def test_a_checkpoint_broken_while_it_was_written_is_found_out(stopped: SimpleNamespace, tmp_path: Path, effect: str) -> None:
    run, faults = tmp_path / "run", tmp_path / "faults.yaml"
    broken = {"when": {"step": 8}, "effect": effect}
    time_to_write = {"when": {"step": 9, "attempt": 1, "phase": "forward"}, "effect": "slow", "seconds": 5}
    faults.write_text(yaml.safe_dump([broken, time_to_write, {"when": {"step": 10, "attempt": 1}, "effect": "kill"}]))
    done = holdfast("train", stopped.config, "--run", run, "--faults", faults, "--json")
    assert done.returncode == 0, done.stderr
    assert events(run, "checkpoint_passed_over")[0]["checkpoint"] == "step-00000008"
    assert json.loads(done.stdout)["artifact_sha256"] == stopped.sha256


def test_a_journal_cut_by_a_power_loss_leads_to_an_older_state(stopped: SimpleNamespace, run: Path) -> None:
    rows = (run / "steps.jsonl").read_bytes().splitlines(keepends=True)
    (run / "steps.jsonl").write_bytes(b"".join(rows[:6]) + rows[6][:20])
    done = holdfast("train", stopped.config, "--run", run, "--json")
    assert done.returncode == 0, done.stderr
    assert events(run, "restored")[-1]["step"] == 4
    assert [row["step"] for row in lines(run / "steps.jsonl")] == list(range(1, 13))
    assert json.loads(done.stdout)["artifact_sha256"] == stopped.sha256


def test_a_last_checkpoint_that_went_bad_is_trained_again(config_of: Callable[..., Path], tmp_path: Path) -> None:
    config, run = config_of(train={"steps": 5}), tmp_path / "run"
    whole = json.loads(holdfast("train", config, "--run", run, "--json").stdout)
    (run / "summary.json").unlink()  # as if the machine had gone down between training and its end
    (run / "attempts/001/wreck.json").unlink()
    last = run / "checkpoints/step-00000005/adapter_model.safetensors"
    last.write_bytes(last.read_bytes()[:-1])
    refused = holdfast("train", config, "--run", run)
    assert refused.returncode == 3, refused.stderr
    assert "rerun the same command to train the missing steps again" in refused.stderr
    again = holdfast("train", config, "--run", run, "--json")
    assert again.returncode == 0, again.stderr
    summary = json.loads(again.stdout)
    assert (summary["artifact_sha256"], summary["steps"]) == (whole["artifact_sha256"], 5)
    assert [row["step"] for row in lines(run / "steps.jsonl")] == [1, 2, 3, 4, 5]
