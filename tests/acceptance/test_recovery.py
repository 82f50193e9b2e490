"""What a fault costs: a standby takes over, a step is lost at most, saving keeps its measure, a full disk and a reboot are survived."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from conftest import events, fill, holdfast, kill, lines, processes_of, settings_with, start, wait_until, write_config
from holdfast.config.train import Train
from holdfast.processes.standby import Standby
from holdfast.run.folder import RunFolder
from holdfast.run.snapshots.memory_file import MemoryFile
from holdfast.run.snapshots.save_interval import checkpoint_interval, mean_time_between_failures, snapshot_interval
from holdfast.run.types import Launch
from holdfast.trainer.jobs.standby import _warm_up
from holdfast.trainer.optim.optimizer import AdamW
from support.architectures import ARCHITECTURES, task_of, tokens_of

Write = Callable[..., Path]
pytestmark = pytest.mark.usefixtures("no_leftovers")
STEPS = 200
LONG = {"steps": STEPS, "effective_batch": 4}


@pytest.fixture(scope="module")
def undisturbed(assets: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> str:
    """artifact_sha256 of a run nobody disturbed."""
    folder = tmp_path_factory.mktemp("recovery")
    tree = {
        "model": str(assets.model),
        "data": {"files": [str(assets.rows)], "held_out": 0.0},
        "adapter": {"r": 4, "dropout": 0.1},
        "train": {"lr": 1e-3, "max_tokens": 96, "threads": 1} | LONG,
    }
    (folder / "c.yaml").write_text(json.dumps(tree))
    done = holdfast("train", folder / "c.yaml", "--run", folder / "run", "--json")
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)["artifact_sha256"])


def finished(run: Path, output: str = "") -> str:
    """The artifact of a run that finished with each step exactly one row."""
    summary = json.loads((run / "summary.json").read_text())
    assert summary["status"] == "finished", output
    assert [row["step"] for row in lines(run / "steps.jsonl")] == list(range(1, STEPS + 1))
    return str(summary["artifact_sha256"])


def committed(run: Path) -> int:
    return RunFolder(run).committed()


def memory_of(run: Path) -> MemoryFile:
    ready = sorted(run.glob("attempts/*/ready.json"))[-1]
    memory = MemoryFile.open(Path(json.loads(ready.read_text())["memory_file"]))
    assert memory is not None
    return memory


# ---- the standby


def that_wait(folder: Path, *seconds: float, step: int = 60, also: dict[str, Any] | None = None) -> Path:
    """Faults with which the first attempts stand still at a step, each for so long: for a standby, however busy the machine is."""
    file = folder / "waiting.yaml"
    waits = [
        {"when": {"step": step, "attempt": number, "phase": "forward"}, "effect": "slow", "seconds": length}
        for number, length in enumerate(seconds, 1)
    ]
    file.write_text(json.dumps(waits + ([also] if also else [])))
    return file


def test_a_standby_takes_over_and_ends_alike(config_of: Write, undisturbed: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    child = start("train", config_of(train=LONG, run={"standby": True}), "--run", run, "--faults", that_wait(tmp_path, 90))
    wait_until(lambda: "standby trainer" in processes_of(run) and _is_ready(processes_of(run)["standby trainer"]))
    standby, before = processes_of(run)["standby trainer"], committed(run)
    assert json.loads((run / "standby_pids.json").read_text())["standby"]["pid"] == standby
    assert before < STEPS, "the run has to be long enough for this test"
    kill(processes_of(run)["trainer"])
    wait_until(lambda: processes_of(run).get("trainer") == standby)
    output, _ = child.communicate()
    assert finished(run, output) == undisturbed
    assert [event["stood_by"] for event in events(run, "attempt_started")] == [False, True]
    incident = json.loads((run / "summary.json").read_text())["incidents"][0]
    assert incident["lost_steps"] == 0
    assert "standby" not in " ".join(processes_of(run))


def _is_ready(pid: int) -> bool:
    """Whether a process waits for its input: it sleeps in a read of a pipe."""
    try:
        return "pipe" in Path(f"/proc/{pid}/wchan").read_text() or Path(f"/proc/{pid}/stat").read_text().split()[2] == "S"
    except OSError:
        return False


def test_a_standby_ends_with_its_supervisor_and_the_run_gets_another(config_of: Write, undisturbed: str, tmp_path: Path) -> None:
    run, config = tmp_path / "run", config_of(train=LONG, run={"standby": True})
    faults = that_wait(tmp_path, 8)
    first = start("train", config, "--run", run, "--faults", faults)
    wait_until(lambda: "standby trainer" in processes_of(run))
    kill(first.pid)
    first.communicate()
    wait_until(lambda: "standby trainer" not in processes_of(run) and "standby nurse" not in processes_of(run))
    assert "trainer" in processes_of(run), "the run itself goes on"
    again = holdfast("train", config, "--run", run, "--faults", faults)
    assert again.returncode == 0, again.stderr
    assert finished(run) == undisturbed
    assert len(events(run, "standby_started")) == 2


def test_dead_standbys_do_no_harm(config_of: Write, undisturbed: str, tmp_path: Path) -> None:
    """First its trainer, then its shim dies before the run's own trainer does."""
    run = tmp_path / "run"
    child = start("train", config_of(train=LONG, run={"standby": True}), "--run", run, "--faults", that_wait(tmp_path, 90, 90))
    for role in ("standby trainer", "standby nurse"):
        wait_until(lambda: {"standby trainer", "standby nurse"} <= set(processes_of(run)))  # a shim alone is on its way out
        kill(processes_of(run)[role])
        kill(processes_of(run)["trainer"])
        number = len(list((run / "attempts").iterdir()))
        wait_until(lambda number=number: len(events(run, "attempt_started")) > number or child.poll() is not None)
        wait_until(lambda: "trainer" in processes_of(run) or child.poll() is not None)
    output, _ = child.communicate()
    assert finished(run, output) == undisturbed


def test_a_standby_serves_its_own_launch_alone(tmp_path: Path) -> None:
    (tmp_path / "steps.jsonl").write_text('{"step": 1, "seconds": 1.0}\n')
    (tmp_path / "timeline.jsonl").write_text(f'{{"from_step": 1, "settings": {settings_with(steps=100).model_dump_json()}}}\n')
    launch = Launch(("true", "-m", "holdfast.trainer", "train"), {"A": "1"}, settings_with())
    with Standby(RunFolder(tmp_path), "imports", always=False) as standby:
        standby.consider(launch)
        assert standby.waits(), "99 seconds are still to come"
        shim = standby.shim
        assert standby.take_over(tmp_path / "attempts/001", Launch(launch.argv, {"A": "2"}, settings_with())) is None
        assert shim is not None and shim.poll() is not None, "one of another environment is thrown away"


def test_a_standby_warms_up_with_a_few_tokens_however_long_the_rows_are() -> None:
    task = task_of(ARCHITECTURES["llama"]())
    task.tokens, seen = tokens_of((5000, 4000)), []
    task.base.model.register_forward_pre_hook(lambda _module, _given, named: seen.append(named["input_ids"].shape), with_kwargs=True)
    optimizer = AdamW(task.artifact, Train())
    _warm_up(SimpleNamespace(task=task, optimizer=optimizer))  # type: ignore[arg-type]
    assert seen == [(1, 32)]
    assert not optimizer.gradient.any()


def test_a_standby_has_to_pay(tmp_path: Path) -> None:
    (tmp_path / "steps.jsonl").write_text('{"step": 90, "seconds": 1.0}\n')
    (tmp_path / "timeline.jsonl").write_text(f'{{"from_step": 1, "settings": {settings_with(steps=100).model_dump_json()}}}\n')
    launch = Launch(("true", "-m", "holdfast.trainer", "train"), {}, settings_with())
    for mode, always, expected in (("imports", False, False), ("off", True, False), ("imports", True, True)):
        with Standby(RunFolder(tmp_path), mode, always) as standby:  # type: ignore[arg-type]
            standby.consider(launch)
            assert standby.waits() is expected


def test_a_standby_of_other_settings_builds_its_model_anew(config_of: Write, tmp_path: Path) -> None:
    """The micro-batch was split after the standby was built; what takes over computes with the new limit, to the same bits."""
    split = {"when": {"attempt": 1, "step": 100, "tokens": [100, 9999]}, "effect": "oom"}
    config = config_of(train=LONG, run={"standby": True})
    run = tmp_path / "run"
    child = start("train", config, "--run", run, "--faults", that_wait(tmp_path, 90, step=110, also=split))
    wait_until(lambda: (run / "timeline.jsonl").exists() and len(lines(run / "timeline.jsonl")) > 1 and committed(run) > 105)
    wait_until(lambda: "standby trainer" in processes_of(run) and _is_ready(processes_of(run)["standby trainer"]))
    kill(processes_of(run)["trainer"])
    output, _ = child.communicate()
    killed = finished(run, output)
    faults = that_wait(tmp_path, also=split)
    whole = holdfast("train", config, "run.standby=false", "--run", tmp_path / "whole", "--faults", faults)
    assert whole.returncode == 0, whole.stderr
    assert [event["stood_by"] for event in events(run, "attempt_started")] == [False, True]
    assert not events(tmp_path / "whole", "standby_started")
    assert finished(tmp_path / "whole") == killed


# ---- how often


@pytest.mark.parametrize(
    ("cost_s", "step_s", "steps"), [(0.0005, 0.01, 1), (0.002, 0.3, 1), (0.003, 0.3, 1), (0.004, 0.3, 2), (0.05, 0.2, 25), (0.05, 0.0, 1)]
)
def test_snapshots_cost_a_hundredth_of_a_step_at_most(cost_s: float, step_s: float, steps: int) -> None:
    assert snapshot_interval(cost_s, step_s) == steps


def test_the_checkpoint_interval_is_young_and_dalys() -> None:
    assert mean_time_between_failures(600.0, 0) == 4200.0
    assert mean_time_between_failures(600.0, 5) == 700.0
    assert checkpoint_interval(2.0, 3600.0) == pytest.approx(118.0)
    assert checkpoint_interval(2.0, 900.0) == pytest.approx(58.0)
    assert checkpoint_interval(40.0, 60.0) == 60.0

    def waste(seconds: float) -> float:
        return 2.0 / (seconds + 2.0) + (seconds / 2 + 2.0) / 3600.0  # saves, and half an interval and a save for each failure

    best = min(range(1, 1000), key=waste)
    assert waste(checkpoint_interval(2.0, 3600.0)) == pytest.approx(waste(best), rel=0.01)


def test_the_first_checkpoint_is_made_at_once_and_the_next_when_they_pay(config_of: Write, tmp_path: Path) -> None:
    done = holdfast("train", config_of(train=LONG | {"steps": 60}, save={"every": None, "keep": 100}), "--run", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    saved = [event["step"] for event in events(tmp_path / "run", "checkpoint_saved")]
    assert saved[0] == 1
    told = events(tmp_path / "run", "checkpoint_interval")
    assert told and "a save takes" in told[0]["reason"] and "(0 so far)" in told[0]["reason"]
    bounded = holdfast(
        "train", config_of(train=LONG | {"steps": 25}, save={"every": None, "keep": 100, "max_every": 7}), "--run", tmp_path / "b"
    )
    assert bounded.returncode == 0, bounded.stderr
    steps = [event["step"] for event in events(tmp_path / "b", "checkpoint_saved")]
    assert max(later - earlier for earlier, later in itertools.pairwise(steps)) <= 7 + 1, steps


def test_every_nth_checkpoint_is_kept_for_good(config_of: Write, tmp_path: Path) -> None:
    save = {"every": 3, "keep": 2, "keep_every": 10}
    done = holdfast("train", config_of(train=LONG | {"steps": 32}, save=save), "--run", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    kept = sorted(int(entry.name[5:]) for entry in (tmp_path / "run/checkpoints").glob("step-*"))
    assert kept == [10, 20, 30, 32]


def test_bounds_that_exclude_each_other(config_of: Write, tmp_path: Path) -> None:
    said = holdfast("train", config_of(save={"min_every": 9, "max_every": 5}), "--run", tmp_path / "run")
    assert said.returncode == 2
    assert "min_every is 9, max_every 5: no interval lies between them" in said.stderr


# ---- snapshots further apart


@pytest.fixture(scope="module")
def twelve(assets: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of 12 steps."""
    folder = tmp_path_factory.mktemp("twelve")
    config = write_config(assets, folder / "run.yaml", train={"steps": 12, "effective_batch": 4}, save={"every": 100})
    done = holdfast("train", config, "--run", folder / "run")
    assert done.returncode == 0, done.stderr
    return folder / "run"


@pytest.fixture
def trained(twelve: Path, tmp_path: Path) -> Path:
    """A copy of a finished run of 12 steps, whose plan and data a test trains on again in this process."""
    return Path(shutil.copytree(twelve, tmp_path / "run", symlinks=True))


def committed_in_process(run: Path, place: Path, upto: int, every: int) -> Any:
    """Train `run` from its newest state in `place` up to a step, as the loop does, snapshots `every` steps; then leave as if killed."""
    from holdfast.trainer.common.job import open_job
    from holdfast.trainer.loop.loop import _row
    from holdfast.trainer.state.restore import state_for_training
    from holdfast.trainer.state.snapshot import Snapshots
    from holdfast.trainer.step.training_state import build

    folder = run / "attempts/002"
    folder.mkdir(exist_ok=True)
    job = open_job(RunFolder(run), 2, folder, {})
    found = state_for_training(job.run, [place])
    training = build(job, job.settings(1))
    snapshots = Snapshots(training, [place])
    snapshots.every = every
    restored = found.snapshot.step if found.snapshot else 0
    if found.snapshot:
        training.restore(found.snapshot)
    for step in range(restored + 1, upto + 1):
        computed = training.compute(step, training.samples(step), lambda *_: 1.0)
        assert training.apply(step, computed)
        snapshots.commit(step, _row(training, step, computed, 0.1), durable=False)
    snapshots.settle()
    return SimpleNamespace(training=training, snapshots=snapshots, restored=restored)


def test_steps_between_snapshots_are_computed_again_and_count_once(trained: Path, tmp_path: Path) -> None:
    before = lines(trained / "steps.jsonl")
    wanted = RunFolder(trained).path.joinpath("adapter/adapter_model.safetensors").read_bytes()
    (trained / "steps.jsonl").unlink()
    for entry in (trained / "checkpoints").iterdir():
        entry.rename(tmp_path / entry.name)
    place = tmp_path / "memory"
    first = committed_in_process(trained, place, upto=8, every=3)
    assert [row["step"] for row in lines(trained / "steps.jsonl")] == list(range(1, 9))
    assert first.snapshots.memory.newest_header().step == 7, "steps 1, 4 and 7 have snapshots"
    second = committed_in_process(trained, place, upto=12, every=1)
    assert second.restored == 7
    rows = lines(trained / "steps.jsonl")
    assert [row["step"] for row in rows] == list(range(1, 13)), "step 8 was computed twice and counts once"
    assert [row["loss"] for row in rows] == [row["loss"] for row in before]
    assert second.training.artifact.to_bytes() == wanted


def test_a_large_state_waits_for_the_writer_but_not_for_ever(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.trainer.state import snapshot

    monkeypatch.setattr(snapshot, "_LARGE", 1)
    (trained / "steps.jsonl").unlink()
    for entry in (trained / "checkpoints").iterdir():
        entry.rename(tmp_path / entry.name)
    snapshots = committed_in_process(trained, tmp_path / "memory", upto=2, every=1).snapshots
    snapshots.pin_newest()
    taken = []
    for step in range(3, 12):
        snapshots.commit(step, lines(trained / "steps.jsonl")[-1] | {"step": step}, durable=False)
        snapshots.settle()
        taken.append(snapshots.memory.newest_header().step)
    assert taken == [2] * 7 + [10, 10], "a disk that is full for hours costs eight intervals at a death"


def test_a_step_that_may_turn_out_the_best_has_its_snapshot_in_any_case(trained: Path, tmp_path: Path) -> None:
    """Evaluated steps fall between snapshots that are far apart; their state has to be there when it is to be kept."""
    (trained / "steps.jsonl").unlink()
    for entry in (trained / "checkpoints").iterdir():
        entry.rename(tmp_path / entry.name)
    snapshots = committed_in_process(trained, tmp_path / "memory", upto=2, every=50).snapshots
    row = lines(trained / "steps.jsonl")[-1]
    snapshots.commit(3, row | {"step": 3}, durable=False, needed=True)
    snapshots.settle()
    assert snapshots.memory.newest_header().step == 3
    snapshots.secure(3)
    assert [header.step for header in snapshots.memory.pinned_headers()] == [3]


def test_the_newest_state_is_asked_for_when_a_trainer_ends(trained: Path, tmp_path: Path) -> None:
    (trained / "steps.jsonl").unlink()
    for entry in (trained / "checkpoints").iterdir():
        entry.rename(tmp_path / entry.name)
    snapshots = committed_in_process(trained, tmp_path / "memory", upto=2, every=1).snapshots
    snapshots.end()
    assert snapshots.memory.pinned_headers() == []
    snapshots.pin_newest()
    assert [header.step for header in snapshots.memory.pinned_headers()] == [2]


def test_a_state_that_is_not_finite_never_counts(trained: Path, tmp_path: Path) -> None:
    (trained / "steps.jsonl").unlink()
    for entry in (trained / "checkpoints").iterdir():
        entry.rename(tmp_path / entry.name)
    found = committed_in_process(trained, tmp_path / "memory", upto=3, every=1)
    for step, spoil in ((4, float("nan")), (5, float("inf"))):
        next(iter(found.training.optimizer.parameters.values())).data.view(-1)[-1] = spoil
        found.snapshots.commit(step, lines(trained / "steps.jsonl")[-1] | {"step": step}, durable=False)
        with pytest.raises(FloatingPointError, match=f"step {step}: weights or optimizer state are not finite"):
            found.snapshots.settle()
    assert found.snapshots.memory.newest_header().step == 3
    assert committed(trained) == 3


def test_the_state_is_copied_in_few_pieces(trained: Path) -> None:
    """Hundreds of small copies would cost more than a hundredth of a step."""
    from holdfast.trainer.common.job import open_job
    from holdfast.trainer.step.training_state import build

    job = open_job(RunFolder(trained), 1, trained, {})
    training = build(job, job.settings(1))
    assert len(training.artifact._runs) == 1
    assert len(training.state._runs) == 3, "two moments, and the number of updates"
    with torch.no_grad():
        training.optimizer.weights.fill_(3.0)
    assert all(bool((parameter == 3.0).all()) for parameter in training.optimizer.parameters.values()), (
        "the optimizer moves the model's own"
    )


def test_snapshots_that_would_fill_the_memory_go_elsewhere(trained: Path, tmp_path: Path) -> None:
    from holdfast.run.snapshots.memory_places import SHARED_MEMORY
    from holdfast.trainer.common.job import open_job
    from holdfast.trainer.state import snapshot
    from holdfast.trainer.step.training_state import build

    machine = json.loads((trained / "machine.json").read_text())
    (trained / "machine.json").write_text(json.dumps(machine | {"memory_bytes": 1 << 20}))
    (trained / "attempts/002").mkdir()
    job = open_job(RunFolder(trained), 2, trained / "attempts/002", {})
    training = build(job, job.settings(1))
    shared = SHARED_MEMORY / f"holdfast-test-{os.getpid()}"
    snapshots = snapshot.Snapshots(training, [shared, tmp_path / "elsewhere"])
    assert snapshots.memory.path == tmp_path / "elsewhere" and not shared.exists()
    assert "more than a quarter of 1 MiB" in events(trained, "snapshot_place_refused")[0]["reason"]


# ---- disks and reboots


def that_dawdle(folder: Path) -> list[object]:
    """The option of faults that make each step last longer, on the clock alone: for what has to happen while a run is under way."""
    file = folder / "dawdling.yaml"
    file.write_text(json.dumps([{"when": {"every": 1, "phase": "forward"}, "effect": "slow", "seconds": 0.02}]))
    return ["--faults", file]


def test_a_full_disk_pauses_saving_and_training_goes_on(config_of: Write, undisturbed: str, small_disk: Path, tmp_path: Path) -> None:
    run = small_disk / "run"
    child = start("train", config_of(train=LONG, save={"every": 10}), "--run", run, *that_dawdle(tmp_path))
    wait_until(lambda: (run / "steps.jsonl").exists() and committed(run) > 15)
    filler = fill(small_disk)
    full_at = committed(run)
    memory = memory_of(run)
    wait_until(lambda: memory.unwritten > 30)
    filler.unlink()
    output, _ = child.communicate()
    assert child.returncode == 0, output
    assert "is full: training continues" in output and "the disk has room again" in output
    assert finished(run, output) == undisturbed
    over = events(run, "disk_full_over")
    assert over and over[0]["step"] > full_at + 30
    assert len(events(run, "attempt_started")) == 1
    assert any(event["step"] > over[0]["step"] for event in events(run, "checkpoint_saved")), "saving resumes"


def test_everything_killed_while_the_disk_is_full_loses_no_step(
    config_of: Write, undisturbed: str, small_disk: Path, tmp_path: Path
) -> None:
    run, config = small_disk / "run", config_of(train=LONG, save={"every": 10})
    child = start("train", config, "--run", run, *that_dawdle(tmp_path))
    wait_until(lambda: (run / "steps.jsonl").exists() and committed(run) > 15)
    filler = fill(small_disk)
    memory = memory_of(run)
    wait_until(lambda: memory.unwritten > 30)
    kill(child.pid)
    for pid in processes_of(run).values():
        kill(pid)
    child.communicate()
    wait_until(lambda: not processes_of(run))
    newest = memory.newest_header()
    assert newest is not None and newest.step > committed(run) + 15
    filler.unlink()
    done = holdfast("train", config, "--run", run)
    assert done.returncode == 0, done.stderr
    assert events(run, "restored")[-1]["step"] == newest.step
    assert finished(run) == undisturbed


@pytest.mark.parametrize("flushed", [True, False], ids=["flushed snapshots", "snapshots in memory"])
def test_a_reboot_goes_on_from_the_newest_state_on_disk(config_of: Write, undisturbed: str, tmp_path: Path, flushed: bool) -> None:
    """All processes killed at once and /dev/shm emptied, as a power cut does."""
    run, config = tmp_path / "run", config_of(train=LONG, save={"every": 20, "flush_snapshots": flushed})
    child = start("train", config, "--run", run, *that_dawdle(tmp_path))
    wait_until(lambda: (run / "steps.jsonl").exists() and committed(run) > 50)
    kill(child.pid)
    for pid in processes_of(run).values():
        kill(pid)
    child.communicate()
    wait_until(lambda: not processes_of(run))
    file = memory_of(run).path
    assert file.is_relative_to(run) is flushed
    before = committed(run)
    if not flushed:
        file.unlink()
    done = holdfast("train", config, "--run", run)
    assert done.returncode == 0, done.stderr
    restored = events(run, "restored")[-1]
    assert restored["state"] == f"the {'snapshot' if flushed else 'checkpoint'} of step {restored['step']}"
    assert restored["step"] > 0 and (flushed or before - restored["step"] <= 40)
    assert finished(run) == undisturbed


def test_a_snapshot_file_that_is_taken_away_is_made_again(config_of: Write, undisturbed: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    child = start("train", config_of(train=LONG), "--run", run, *that_dawdle(tmp_path))
    wait_until(lambda: (run / "steps.jsonl").exists() and committed(run) > 20)
    file = memory_of(run).path
    file.unlink()
    wait_until(lambda: events(run, "snapshot_file_made_again") != [])
    kill(processes_of(run)["trainer"])
    output, _ = child.communicate()
    assert finished(run, output) == undisturbed
    assert "the snapshot of step" in events(run, "restored")[1]["state"]


def test_a_pulse_leaves_the_counters_alone(tmp_path: Path) -> None:
    memory = MemoryFile.create(tmp_path / "m", tmp_path, 100, 100)
    memory.unwritten, memory.saved_s = 7, 0.25
    memory.count_micro_batch()
    memory.beat({"samples": list(range(2000))})
    assert (memory.unwritten, memory.saved_s, memory.count_micro_batch()) == (7, 0.25, 2)


def test_the_end_of_a_process_is_seen_at_once() -> None:
    import subprocess

    from holdfast.base.wait import wait_for_end

    child = subprocess.Popen(["sleep", "100"])
    began = time.monotonic()
    wait_for_end([child.pid], 0.05)
    assert time.monotonic() - began >= 0.04, "it lives"
    child.kill()
    wait_for_end([child.pid], 1000)
    child.wait()
    wait_for_end([child.pid], 1000)
    wait_for_end([], 0.01)
