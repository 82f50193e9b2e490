"""The power is cut at any moment: what was never flushed is gone, and the run goes on from the newest whole checkpoint to the same bits.

On a small ext4 image mounted by loop, copied as the kernel has written it (support/power_cut.py); skipped where that needs more rights.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from conftest import holdfast, lines, processes_of, start, wait_until
from holdfast.run.folder import RunFolder
from holdfast.run.snapshots.checkpoint import checkpoint_steps, newest_valid
from holdfast.run.snapshots.memory_file import MemoryFile
from holdfast.run.snapshots.memory_places import memory_places
from support.power_cut import Disk, evidence

STEPS = 24
LOOP = Path(__file__).parents[1] / "support" / "flushing_trainer.py"
KINDS: dict[str, dict[str, Any]] = {
    "text": {"save": {"every": 5}},
    "one checkpoint": {"save": {"every": 4, "keep": 1}},
    "default saving": {"save": {}},
    "evaluated": {"save": {"every": 5}, "data": {"held_out": 0.1}, "evaluate": {"every": 4, "generate": 0}},
    "flushed snapshots": {"save": {"every": 10, "flush_snapshots": True}},
}
FLUSHES = """
import os, sys
with open(sys.argv[1], "a") as rows:
    for number in range(10 ** 6):
        rows.write(f"{number:0900}\\n")
        rows.flush()
        os.fsync(rows.fileno())
        os.write(1, b"%0900d\\n" % number)
"""
_UNDISTURBED: dict[str, str] = {}  # the adapter's hash, by kind, of a run that nothing was done to


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path)
    if not made.mounted:
        pytest.skip("mounting an image needs root and a loop device")
    yield made
    made.unmount()


def newest_row(file: Path) -> int:
    """The step of a journal's last whole line; 0 where there is none."""
    text = file.read_bytes() if file.exists() else b""
    whole = text[: text.rfind(b"\n") + 1].splitlines()
    return int(json.loads(whole[-1])["step"]) if whole else 0


def forget_memory(run: RunFolder) -> None:
    """Remove what a machine without power does not have any more."""
    if (run.path / "run.json").exists():
        for place in memory_places(run.path, run.id(), None, False):
            if not place.is_relative_to(run.path):
                place.unlink(missing_ok=True)


def newest_on_disk(run: RunFolder) -> int:
    """The step of the newest snapshot in the run folder that can be read; 0 where there is none."""
    for place in run.path.glob("snapshot/*.rank0"):
        if memory := MemoryFile.open(place):
            with memory:
                return newest.step if (newest := memory.newest()) else 0
    return 0


def cut_at(seed: str, kind: str, disk: Disk, config_of: Callable[..., Path], tmp_path: Path) -> None:
    """Cut a run at a drawn moment, perhaps with some written back before; it ends like the undisturbed one, from its newest checkpoint."""
    run = RunFolder(disk.folder / "runs" / "cut")
    told: list[str] = []
    try:
        _cut_at(seed, kind, disk, run, config_of, tmp_path, told)
    except BaseException:
        now = evidence(run.path)
        whole = evidence(tmp_path / "whole", 2000)
        print("\n".join([*told, f"=== as it is now, copied {disk.copied_again} times more, {disk.as_cut}", now, "=== undisturbed", whole]))
        raise
    disk.as_cut.unlink()


def _cut_at(seed: str, kind: str, disk: Disk, run: RunFolder, config_of: Callable[..., Path], tmp_path: Path, told: list[str]) -> None:
    draw = random.Random(seed)
    sections = dict(KINDS[kind])
    config = config_of(
        "cut",
        **sections | {"train": {"steps": STEPS, "effective_batch": 8, "lr": 1e-3, "max_tokens": 96, "threads": 1}},
        run={"standby": False},
    )
    (tmp_path / "slow.json").write_text(json.dumps([{"when": {"step": step}, "effect": "slow", "seconds": 0.05} for step in range(STEPS)]))
    command = ["train", config, "--run", run.path, "--json"]
    at, written_back = draw.randint(0, STEPS), draw.choice([None, draw.randint(1, STEPS)])
    child = start(*command, "--faults", tmp_path / "slow.json")
    wait_until(lambda: run.path.exists() or child.poll() is not None, 600)
    while newest_row(run.steps_file) < at and child.poll() is None:
        if written_back and newest_row(run.steps_file) >= written_back:
            disk.flush()
            written_back = None
    time.sleep(draw.random() / 10)
    disk.cut()
    said, _ = child.communicate()
    told += [f"=== {seed} at {at}, written back {written_back}, as it was cut", evidence(run.path), said[-4000:]]
    forget_memory(run)
    begun = run.config_file.exists()
    newest = newest_valid(run)[0] if begun and checkpoint_steps(run) else None
    flushed, rows = newest_on_disk(run), newest_row(run.steps_file)
    if kind == "flushed snapshots" and 0 < rows < STEPS:
        assert flushed, f"{seed} at {at}: {rows} rows are on the disk, and no snapshot"
    done = holdfast(*command)
    told += ["=== the same command again", done.stdout[-4000:], done.stderr[-4000:]]
    assert done.returncode == 0, f"{seed} at {at}: {done.stderr}"
    summary = json.loads(done.stdout)
    restored = [event["step"] for event in lines(run.events_file) if event["event"] == "restored"]
    if newest is not None and newest.step < STEPS:
        assert restored[-1] >= newest.step, f"{seed} at {at}: {restored}, {newest.step}"
    if 0 < flushed < STEPS:
        assert restored[-1] >= flushed, f"{seed} at {at}: {restored}, the snapshot of step {flushed}"
    assert [row["step"] for row in lines(run.steps_file)] == list(range(1, STEPS + 1))
    if kind not in _UNDISTURBED:
        whole = holdfast("train", config, "--run", tmp_path / "whole", "--json")
        _UNDISTURBED[kind] = json.loads(whole.stdout)["artifact_sha256"]
    assert summary["artifact_sha256"] == _UNDISTURBED[kind], f"{seed} at {at}"


@pytest.mark.parametrize("seed", ["a"])
def test_a_run_goes_on_from_its_newest_checkpoint(seed: str, disk: Disk, config_of: Callable[..., Path], tmp_path: Path) -> None:
    cut_at(seed, "one checkpoint", disk, config_of, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(40))
def test_a_run_of_any_kind_goes_on(kind: str, seed: int, disk: Disk, config_of: Callable[..., Path], tmp_path: Path) -> None:
    cut_at(f"{kind}{seed}", kind, disk, config_of, tmp_path)


def test_a_run_at_its_end_whose_checkpoint_is_late_goes_on(disk: Disk, config_of: Callable[..., Path], tmp_path: Path) -> None:
    """All rows are on the disk, and the trainer's end; the last checkpoint is not, for the writer got no processor."""
    run = disk.folder / "runs" / "late"
    config = config_of("late", save={"every": 3, "flush_snapshots": True}, run={"standby": False})
    slow = tmp_path / "slow.json"
    slow.write_text(json.dumps([{"when": {"step": 5}, "effect": "slow", "seconds": 2}]))
    command = ["train", config, "--run", run, "--json"]
    child = start(*command, "--faults", slow)
    wait_until(lambda: (run / "checkpoints/step-00000003").exists())
    os.kill(processes_of(run)["writer"], signal.SIGSTOP)
    wait_until(lambda: newest_row(run / "steps.jsonl") == 8 and "trainer" not in processes_of(run))
    disk.cut()
    child.communicate()
    assert checkpoint_steps(RunFolder(run)) == [3] and newest_row(run / "steps.jsonl") == 8
    done = holdfast(*command)
    assert done.returncode == 0, done.stderr
    whole = holdfast("train", config, "--run", tmp_path / "whole", "--json")
    assert json.loads(done.stdout)["artifact_sha256"] == json.loads(whole.stdout)["artifact_sha256"]


def test_what_is_called_finished_is_on_the_disk(disk: Disk, config_of: Callable[..., Path]) -> None:
    run = disk.folder / "runs" / "done"
    config = config_of("done", train={"steps": 3})
    done = holdfast("train", config, "--run", run, "--json")
    assert done.returncode == 0, done.stderr
    before = {file.relative_to(run): file.read_bytes() for file in run.rglob("*") if file.is_file()}
    exported = holdfast("export", run, "--to", "adapter", "--out", disk.folder / "exported")
    assert exported.returncode == 0, exported.stderr
    out = {file.name: file.read_bytes() for file in (disk.folder / "exported").iterdir()}
    disk.cut()
    assert {file.name: file.read_bytes() for file in (disk.folder / "exported").iterdir()} == out
    journals = {Path("events.jsonl"), Path("report.html"), Path("supervisor.lock"), Path("readings.jsonl")}  # written behind the summary
    for name, data in before.items():
        assert name in journals or (run / name).read_bytes() == data, name
    again = holdfast("train", config, "--run", run, "--json")
    assert again.returncode == 0 and json.loads(again.stdout)["status"] == "finished"


def test_what_other_verbs_called_done_is_on_the_disk(disk: Disk, config_of: Callable[..., Path], tmp_path: Path) -> None:
    """A merged model, a bundle, cleaned rows, a moved run: said to be done, then the power is cut."""
    run, away = disk.folder / "runs" / "done", disk.folder / "away"
    config = config_of("done", train={"steps": 3})
    assert holdfast("train", config, "--run", run, "--json").returncode == 0
    away.mkdir()
    made = {
        "merged": ("export", run, "--to", "merged", "--out", disk.folder / "merged"),
        "bundle.zip": ("bundle", run, "--out", disk.folder / "bundle.zip"),
        "clean.jsonl": ("data", "clean", yaml.safe_load(config.read_text())["data"]["files"][0], "--out", disk.folder / "clean.jsonl"),
        "away": ("move", run, "--to", away),
    }
    for name, words in made.items():
        done = holdfast(*words, cwd=tmp_path)
        assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"
        place = disk.folder / name
        files = [place] if place.is_file() else sorted(file for file in place.rglob("*") if file.is_file())
        before = {file: file.read_bytes() for file in files}
        assert before, name
        disk.cut()
        lost = [str(file) for file, data in before.items() if not file.is_file() or file.read_bytes() != data]
        assert not lost, f"{name}: {lost}"


def test_a_flushed_snapshot_is_read_after_a_power_cut(disk: Disk) -> None:
    """No byte of its file reaches the disk otherwise: neither the kernel nor the end of a process has written any back."""
    run = disk.folder / "run"
    run.mkdir()
    disk.flush()
    place = run / "snapshot" / "a.rank0"
    for step in range(1, 5):
        memory = MemoryFile.create(place, run, 3000, 70_000)
        slot = memory.free_slot()
        assert slot is not None
        memory.begin(slot)
        memory.seal(slot, step, step, {"step": step}, pin=False)
        memory.flush(slot)
        disk.cut()
        found = MemoryFile.open(place)
        assert found is not None, f"step {step}"
        newest = found.newest()
        assert newest is not None and newest.step == step
    with found:
        found.forget_after(3)  # as a rollback does; the step that was taken back must not come again
        disk.cut()
    left = MemoryFile.open(place)
    assert left is not None and (newest := left.newest()) is not None and newest.step == 3


def test_a_cut_while_a_file_is_flushed_takes_nothing_that_was(disk: Disk) -> None:
    """The image is copied as it is at one moment, though a process that is stopped goes on with the flush that it is in."""
    for _ in range(5):
        (disk.folder / "rows").unlink(missing_ok=True)
        with subprocess.Popen([sys.executable, "-c", FLUSHES, disk.folder / "rows"], stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            told = [writer.stdout.readline() for _ in range(20)]
            disk.cut()
            told += writer.stdout.readlines()
        rows = (disk.folder / "rows").read_text().splitlines()
        assert rows[: len(told)] == [line.strip() for line in told if line.endswith("\n")]


@pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="the package xllamacpp is not installed")
def test_a_gguf_and_what_was_promoted_are_on_the_disk(disk: Disk, config_of: Callable[..., Path], tmp_path: Path) -> None:
    """The list of models lies in a folder that did not exist before."""
    run, out = tmp_path / "done", disk.folder / "gguf"
    env = {"HOLDFAST_MODELS": str(disk.folder / "shipped" / "models.jsonl")}
    for verb in (("train", config_of("done", train={"steps": 2}), "--run", run), ("export", run, "--to", "gguf", "--out", out)):
        done = holdfast(*verb, env=env)
        assert done.returncode == 0, done.stdout + done.stderr
    before = {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}
    disk.cut()
    assert {file: file.read_bytes() for file in out.rglob("*") if file.is_file()} == before
    promoted = holdfast("models", "promote", "done", "1", "--force", "a trial", "--json", env=env)
    assert promoted.returncode == 0, promoted.stderr
    disk.cut()
    listed = json.loads(holdfast("models", "--json", env=env).stdout)
    assert listed == json.loads(promoted.stdout) and listed["models"][0]["promoted"]


def test_a_commands_run_goes_on_from_its_own_checkpoint(disk: Disk) -> None:
    """The command flushes its checkpoints; one of another run, further on, was there before."""
    out, run = disk.folder / "out", disk.folder / "run"
    words = [sys.executable, LOOP, "--output_dir", out]
    assert holdfast("run", "--run", disk.folder / "other", "--", *words, "--steps", 40, "--pause", 0).returncode == 0
    disk.flush()
    command = ["run", "--run", run, "--json", "--checkpoints", out, "--", *words, "--steps", 30]
    child = start(*command)
    wait_until(lambda: newest_row(run / "progress.jsonl") >= 12 or child.poll() is not None, 600)
    disk.cut()
    child.communicate()
    done = holdfast(*command)
    assert done.returncode == 0, done.stderr
    restored = [event["state"] for event in lines(run / "events.jsonl") if event["event"] == "restored"]
    assert restored and restored[0].endswith(("checkpoint-9", "checkpoint-12", "checkpoint-15")), restored


def test_a_state_ahead_of_its_journal_is_used(config_of: Callable[..., Path], tmp_path: Path) -> None:
    """As a disk leaves it that forgets what was flushed: one checkpoint, no rows."""
    run = RunFolder(tmp_path / "run")
    config = config_of("ahead", train={"steps": 9}, save={"every": 3, "keep": 1})
    faults = tmp_path / "kill.json"
    faults.write_text(json.dumps([{"when": {"step": 8}, "effect": "slow", "seconds": 600}]))
    child = start("train", config, "--run", run.path, "--json", "--faults", faults)
    wait_until(lambda: checkpoint_steps(run) == [6] and newest_row(run.steps_file) >= 7, 600)
    from support.power_cut import kill_all

    kill_all(run.path)
    child.communicate()
    forget_memory(run)
    run.steps_file.write_bytes(b"")
    done = holdfast("train", config, "--run", run.path, "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert [row["step"] for row in lines(run.steps_file)] == [6, 7, 8, 9]
    told = [event for event in lines(run.events_file) if event["event"] == "rows_lost"]
    assert [(event["from"], event["to"]) for event in told] == [(1, 5)]
    whole = holdfast("train", config, "--run", tmp_path / "whole", "--json")
    assert summary["artifact_sha256"] == json.loads(whole.stdout)["artifact_sha256"]
    unknown = (summary["samples_seen"], summary["goodput"], summary["loss"]["first"])
    assert unknown == (None, None, None) and summary["steps"] == 9 and summary["tokens_per_second"], "no figure of half the rows"
    assert "9 (of how many samples is unknown" in done.stderr and "? -> " in done.stderr
    for verb in (("status",), ("report",), ("compare", tmp_path / "whole"), ("trial", "--step", 6)):
        shown = holdfast(verb[0], run.path, *verb[1:])
        assert shown.returncode == 0, shown.stderr
