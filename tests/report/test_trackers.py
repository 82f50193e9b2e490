"""Trackers get every committed step once, through their own packages, and a tracker that fails leaves the run whole. All offline."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from conftest import events, holdfast, kill, lines, processes_of, start, wait_until
from holdfast.base.files import Json
from holdfast.config.config import Config
from holdfast.processes.command_session import MOST_OUTPUT
from holdfast.report.track import TRACKERS, Tracker, follow, numbers
from holdfast.run.folder import RunFolder
from holdfast.supervision.companions import trackers
from support import forked

OFFLINE = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "MLFLOW_ALLOW_FILE_STORE": "true"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with five steps, as far as trackers look at it."""
    folder = tmp_path_factory.mktemp("tracked") / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump({"model": "m", "data": {"files": ["f"]}}))
    (folder / "run.json").write_text(json.dumps({"id": "ab" * 16}))
    (folder / "summary.json").write_text("{}")
    ended = {"diagnosis": {"cause": "unknown"}, "decision": {"reason": "killed by SIGKILL at step 3"}}
    (folder / "events.jsonl").write_text(json.dumps({"time": 2.0, "event": "attempt_ended", **ended}) + "\n")
    row = {"loss": 2.0, "grad_norm": 1.0, "lr": 0.1, "peak_bytes": 5, "tokens": 10, "seconds": 2.0}
    (folder / "steps.jsonl").write_text("".join(json.dumps(row | {"step": k, "loss": 1 / k}) + "\n" for k in range(1, 6)))
    return folder


def track(run: Path, name: str, env: dict[str, str]) -> None:
    """Follow the run in a process of its own, as `train` does."""
    told = run / f"tracked-{name}.json"
    told.unlink(missing_ok=True)
    command = [sys.executable, "-m", "holdfast.report.track", str(run), name]
    done = subprocess.run(command, env=os.environ | OFFLINE | env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(told.read_text()) == {"step": 5, "incident": 2.0, "incidents": 1, "closed": True}


def test_what_is_tracked_of_a_step(run: Path) -> None:
    assert numbers(lines(run / "steps.jsonl")[1]) == {
        "train/loss": 0.5,
        "train/grad_norm": 1.0,
        "train/lr": 0.1,
        "train/peak_bytes": 5.0,
        "train/tokens_per_second": 5.0,
    }


def test_tensorboard_reads_its_event_files(run: Path) -> None:
    pytest.importorskip("tensorboard")
    track(run, "tensorboard", {})
    program = (
        "import sys, json; from tensorboard.backend.event_processing.event_accumulator import EventAccumulator\n"
        "e = EventAccumulator(sys.argv[1]); e.Reload(); print(json.dumps([[s.step, s.value] for s in e.Scalars('train/loss')]))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, str(run / "tensorboard")], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == [[k, pytest.approx(1 / k)] for k in range(1, 6)]
    (file,) = (run / "tensorboard").iterdir()
    assert b"killed by SIGKILL at step 3" in file.read_bytes()


def test_wandb_keeps_an_offline_run(run: Path) -> None:
    pytest.importorskip("wandb")
    track(run, "wandb", {})
    assert list((run / "wandb").glob("offline-run-*/*.wandb"))


def test_mlflow_stores_every_step(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    track(run, "mlflow", {"MLFLOW_TRACKING_URI": tmp_path.as_uri()})
    (metric,) = tmp_path.glob("*/*/metrics/train/loss")
    assert [int(line.split()[2]) for line in metric.read_text().splitlines()] == [1, 2, 3, 4, 5]
    (tag,) = tmp_path.glob("*/*/tags/incident at step*")
    assert tag.read_text() == "killed by SIGKILL at step 3"


def test_trackio_keeps_a_local_project(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("trackio")
    track(run, "trackio", {"TRACKIO_DIR": str(tmp_path), "HF_HUB_OFFLINE": "1"})
    assert list(tmp_path.rglob("*holdfast*"))


def test_held_out_losses_and_incidents_are_tracked_once(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tracked.json", "evaluations.jsonl"):
        (run / name).unlink(missing_ok=True)
    (run / "evaluations.jsonl").write_text("".join(json.dumps({"step": k, "loss": 1 / k}) + "\n" for k in (2, 4)))
    events_before = (run / "events.jsonl").read_bytes()
    ended = {"event": "attempt_ended", "diagnosis": {"cause": "host_out_of_memory"}, "decision": {"reason": "killed by SIGKILL at step 4"}}
    (run / "events.jsonl").write_text(
        "".join(json.dumps(event) + "\n" for event in ({"time": 1.0, "event": "restored"}, {"time": 2.0, **ended}, {"time": 3.0, **ended}))
    )
    (run / "summary.json").write_text(json.dumps({"loss": {"eval_base": 3.0, "eval_tuned": 1.0}}))
    readings = [{"time": t, "processors_busy": t / 10, "gpus": [{"name": "X", "celsius": 60.0 + t}]} for t in (1.0, 3.0)]
    (run / "readings.jsonl").write_text("".join(json.dumps(reading) + "\n" for reading in readings))
    told: list[dict[str, float]] = []
    order: list[tuple[int, bool]] = []
    notes: list[tuple[str, int]] = []

    def log(values: dict[str, float], step: int) -> None:
        told.append(values)
        order.extend([(step, "eval/loss" in values)] if values.keys() & {"eval/loss", "train/loss"} else [])

    recorder = Tracker(log, lambda text, step: notes.append((text, step)), lambda: None)
    monkeypatch.setitem(TRACKERS, "none", lambda run, config: recorder)
    for _ in range(2):
        follow(RunFolder(run), ["none"], lambda: True)
    assert [values["eval/loss"] for values in told if "eval/loss" in values] == [0.5, 0.25]
    assert order == [(1, False), (2, False), (2, True), (3, False), (4, False), (4, True), (5, False)], "each at its own step"
    assert notes == [("killed by SIGKILL at step 4 (host out of memory)", 5)] * 2
    assert [values["incidents"] for values in told if "incidents" in values] == [1.0, 2.0]
    assert [values for values in told if "machine/processors_busy" in values] == [
        {"machine/processors_busy": 0.1, "machine/gpu0/celsius": 61.0},
        {"machine/processors_busy": 0.3, "machine/gpu0/celsius": 63.0},
    ]
    assert [values for values in told if "eval/tuned" in values] == [{"eval/base": 3.0, "eval/tuned": 1.0}]
    (run / "summary.json").write_text("{}")
    for name in ("tracked.json", "evaluations.jsonl", "readings.jsonl"):
        (run / name).unlink()
    (run / "events.jsonl").write_bytes(events_before)


def test_steps_that_took_the_place_of_others_and_a_second_end_are_tracked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tracker kept the losses of steps that were taken back, and the held-out loss of the end before a run was extended."""
    run = RunFolder(tmp_path)
    run.config_file.write_text(yaml.safe_dump({"model": "m", "data": {"files": ["f"]}}))
    run.path.joinpath("run.json").write_text(json.dumps({"id": "ab" * 16}))
    told: list[tuple[int, float]] = []
    ends: list[float] = []

    def log(values: dict[str, float], step: int) -> None:
        told.extend((step, values[name]) for name in ("train/loss", "eval/loss") if name in values)
        ends.extend([values["eval/tuned"]] if "eval/tuned" in values else [])

    monkeypatch.setitem(TRACKERS, "none", lambda run, config: Tracker(log, lambda text, step: None, lambda: None))

    def followed(losses: list[float], tuned: float, events: list[Json]) -> list[tuple[int, float]]:
        told.clear()
        rows = [{"step": at, "loss": loss, "tokens": 1, "seconds": 0.0} for at, loss in enumerate(losses, 1)]
        run.steps_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        run.evaluations_file.write_text("".join(json.dumps({"step": at, "loss": 10 * losses[at - 1]}) + "\n" for at in (2, 4)))
        run.events_file.write_text("".join(json.dumps(event) + "\n" for event in events))
        run.summary_file.write_text(json.dumps({"steps": len(losses), "loss": {"eval_base": 9.0, "eval_tuned": tuned}}))
        follow(run, ["none"], lambda: True)
        return list(told)

    back = [{"time": 5.0, "event": "rolled_back", "step": 4, "to": 2}]
    assert followed([1.0, 2.0, 8.0, 9.0], 3.0, []) == [(1, 1.0), (2, 2.0), (2, 20.0), (3, 8.0), (4, 9.0), (4, 90.0)]
    assert followed([1.0, 2.0, 3.0, 4.0], 3.0, back) == [(3, 3.0), (4, 4.0), (4, 40.0)]
    assert followed([1.0, 2.0, 3.0, 4.0], 3.0, back) == []
    assert ends == [3.0]
    assert followed([1.0, 2.0, 3.0, 4.0, 5.0], 2.0, back) == [(5, 5.0)]
    assert ends == [3.0, 2.0]


def three_processes(folder: Path, name: str) -> None:
    """Track a run of which step 3 and 4 are taken back and trained anew, and which is extended: each time by another process."""
    run = RunFolder(folder)
    run.config_file.write_text(yaml.safe_dump({"model": "m", "data": {"files": ["f"]}}))
    folder.joinpath("run.json").write_text(json.dumps({"id": "ab" * 16}))
    run.summary_file.write_text("{}")
    back = json.dumps({"time": 5.0, "event": "rolled_back", "step": 4, "to": 2}) + "\n"
    for losses, journal in (([1.0, 2.0, 8.0, 9.0], ""), ([1.0, 2.0, 3.0, 4.0], back), ([1.0, 2.0, 3.0, 4.0, 5.0], back)):
        rows = [{"step": at, "loss": loss, "tokens": 1, "seconds": 0.0} for at, loss in enumerate(losses, 1)]
        run.steps_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        run.events_file.write_text(journal)
        command = [sys.executable, "-m", "holdfast.report.track", str(folder), name]
        done = subprocess.run(command, env=os.environ | OFFLINE, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_tensorboard_shows_one_value_a_step_after_a_rollback(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    three_processes(tmp_path, "tensorboard")
    program = (
        "import sys, json; from tensorboard.backend.event_processing.event_accumulator import EventAccumulator\n"
        "e = EventAccumulator(sys.argv[1]); e.Reload(); print(json.dumps([[s.step, s.value] for s in e.Scalars('train/loss')]))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, str(tmp_path / "tensorboard")], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == [[at, float(at)] for at in range(1, 6)]


def wandb_history(file: Path) -> list[dict[str, float]]:
    """Read the logged rows of an offline run: records of LevelDB's log format behind a header of seven bytes."""
    program = """
import json, struct, sys
from wandb.proto import wandb_internal_pb2
data, at, record = open(sys.argv[1], "rb").read(), 7, b""
while at + 7 <= len(data):
    room = 32768 - at % 32768
    if room < 7:
        at += room
        continue
    size, kind = struct.unpack_from("<HB", data, at + 4)
    if kind == 0:
        break
    record += data[at + 7 : at + 7 + size]
    at += 7 + size
    if kind in (1, 4):  # a whole one, or the last part of one
        found = wandb_internal_pb2.Record()
        found.ParseFromString(record)
        record = b""
        if found.HasField("history"):
            items = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in found.history.item}
            print(json.dumps({"_step": found.history.step.num} | items))
"""
    done = subprocess.run([sys.executable, "-c", program, str(file)], capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_wandb_takes_the_steps_that_are_trained_anew(tmp_path: Path) -> None:
    """W&B drops what is logged of a step that is past: its charts kept the losses that were taken back."""
    pytest.importorskip("wandb")
    three_processes(tmp_path, "wandb")
    files = sorted(tmp_path.glob("wandb/offline-run-*/*.wandb"), key=lambda file: file.stat().st_mtime_ns)
    rows = [row for file in files for row in wandb_history(file) if "train/loss" in row]
    assert [(row["train/step"], row["train/loss"]) for row in rows] == [(1, 1), (2, 2), (3, 8), (4, 9), (3, 3), (4, 4), (5, 5)]
    assert [row["_step"] for row in rows] == [1, 2, 3, 4, 5, 6, 7], "it takes nothing of a step that is past"


def test_mlflow_goes_on_with_the_run_that_it_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process that followed a run began another one there, and its curves lay in pieces."""
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "flow").as_uri())
    (tmp_path / "run").mkdir()
    three_processes(tmp_path / "run", "mlflow")
    (metric,) = (tmp_path / "flow").glob("*/*/metrics/train/loss")
    assert [int(line.split()[2]) for line in metric.read_text().splitlines()] == [1, 2, 3, 4, 3, 4, 5]


def test_trackio_goes_on_with_the_run_that_it_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("trackio")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "kept"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for place in ("a", "b"):  # two runs whose folders have one name are not one run
        (tmp_path / place / "run").mkdir(parents=True)
        three_processes(tmp_path / place / "run", "trackio")
    (file,) = (tmp_path / "kept").rglob("*holdfast*.db")
    with contextlib.closing(sqlite3.connect(file)) as kept:
        rows = kept.execute("SELECT run_id, step FROM metrics ORDER BY id").fetchall()
    first, second = dict.fromkeys(run_id for run_id, _ in rows)
    assert [[step for run_id, step in rows if run_id == one] for one in (first, second)] == [[1, 2, 3, 4, 3, 4, 5]] * 2


def test_a_trackers_own_variables_say_where_a_run_belongs(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    pytest.importorskip("trackio")
    track(run, "mlflow", {"MLFLOW_TRACKING_URI": (tmp_path / "flow").as_uri(), "MLFLOW_EXPERIMENT_NAME": "mine"})
    assert [file for file in (tmp_path / "flow").glob("*/meta.yaml") if "name: mine" in file.read_text()]
    track(run, "trackio", {"TRACKIO_DIR": str(tmp_path), "HF_HUB_OFFLINE": "1", "TRACKIO_PROJECT": "mine"})
    assert list(tmp_path.glob("*mine*")) and not list(tmp_path.glob("*holdfast*"))


def test_a_tracker_that_is_not_installed_is_refused_before_the_run(config_of: Callable[..., Path], tmp_path: Path) -> None:
    hidden = tmp_path / "site"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(
        "import importlib.util as u\nreal = u.find_spec\nu.find_spec = lambda name, *a: None if name == 'wandb' else real(name, *a)\n"
    )
    path = os.pathsep.join([str(hidden), os.environ.get("PYTHONPATH", "")])
    done = holdfast("train", config_of(run={"track": ["wandb"]}), "--run", tmp_path / "run", env={"PYTHONPATH": path})
    assert done.returncode == 2
    assert "run.track: wandb not installed" in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_tracker_that_fails_is_an_event_and_the_run_is_whole(config_of: Callable[..., Path], tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    broken = {"MLFLOW_TRACKING_URI": "file:/proc/nowhere", "MLFLOW_ALLOW_FILE_STORE": "true"}
    done = holdfast("train", config_of(run={"track": ["mlflow"]}), "--run", tmp_path / "run", env=broken)
    assert done.returncode == 0, done.stderr
    assert events(tmp_path / "run", "tracking_failed")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "finished"


def test_a_tracker_that_fails_is_told_at_once_and_the_others_go_on(config_of: Callable[..., Path], tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    (tmp_path / "site").mkdir()
    (tmp_path / "site/wandb.py").write_text("def init(**_):\n    raise OSError('no such project')\n")
    (tmp_path / "f.yaml").write_text(json.dumps([{"when": {"step": 3, "attempt": 1}, "effect": "slow", "seconds": 600}]))
    run = tmp_path / "run"
    config = config_of(run={"track": ["wandb", "tensorboard"], "standby": False})
    path = os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")])
    child = start("train", config, "--run", run, "--faults", tmp_path / "f.yaml", env={"PYTHONPATH": path, forked.FORK: ""})
    wait_until(lambda: (run / "events.jsonl").exists() and events(run, "tracking_failed"))
    wait_until(lambda: (run / "steps.jsonl").exists() and len(lines(run / "steps.jsonl")) == 2)
    kill(processes_of(run)["trainer"])
    output, _ = child.communicate()
    assert child.returncode == 0, output
    (failed,) = events(run, "tracking_failed")
    assert "wandb failed (exit code 1)" in output and "wandb failed, and may lack steps" in output
    assert "to a tracker failed" not in output, "once on the screen"
    assert json.loads((run / "summary.json").read_text())["trackers_failed"] == ["wandb"]
    assert failed["tracker"] == "wandb" and "no such project" in (run / "track.log").read_text()
    steps = lines(run / "steps.jsonl")[-1]["step"]
    assert json.loads((run / "tracked-tensorboard.json").read_text())["step"] == steps
    assert not (run / "tracked-wandb.json").exists()


@pytest.mark.parametrize("last", ["raise SystemExit(1)", "raise SystemExit(0)", "time.sleep(600)"])
def test_a_tracker_that_fails_after_the_last_step_is_in_the_summary(last: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The summary was written before, and its user left with it: nothing there spoke of the steps that the tracker never took."""
    run, said = RunFolder(tmp_path), list[str]()
    run.config_file.write_text(yaml.safe_dump({"model": "m", "data": {"files": ["f"]}}))
    program = f"import pathlib, sys, time\nwhile not pathlib.Path(sys.argv[1], 'summary.json').exists(): time.sleep(0.01)\n{last}"
    monkeypatch.setattr(trackers, "module_command", lambda module, *words: [sys.executable, "-c", program, *map(str, words)])
    monkeypatch.setattr(trackers, "write_report", lambda run, out: said.append("report"))
    if "sleep" in last:
        monkeypatch.setattr(trackers, "_PATIENCE_S", 1.0)
        monkeypatch.setattr(trackers, "_MOMENT_S", 0.1)
    config = Config.model_validate({"model": "m", "data": {"files": ["f"]}, "run": {"track": ["wandb"]}})
    with trackers.tracked(run, config, said.append) as late:
        assert not late
        run.summary_file.write_text(json.dumps({"status": "finished", "trackers_failed": ["mlflow"]}))
    assert late == {"trackers_failed": ["mlflow", "wandb"]}
    assert json.loads(run.summary_file.read_text()) == {"status": "finished"} | late
    assert len(events(tmp_path, "tracking_failed")) == 1 and said[-1] == "report"
    assert any("waiting for wandb to take the last steps" in line for line in said) == ("sleep" in last), said


@pytest.mark.parametrize("opens", [False, True])
def test_a_tracker_that_is_long_in_opening_is_named(opens: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, said = RunFolder(tmp_path), list[str]()
    run.config_file.write_text(yaml.safe_dump({"model": "m", "data": {"files": ["f"]}}))
    memory = tmp_path / "tracked-wandb.json"
    memory.write_text("{}")  # of a start before
    opening = "open(sys.argv[1] + '/tracked-wandb.json', 'w').write('{}')" if opens else "pass"
    program = f"import pathlib, sys, time\n{opening}\nopen(sys.argv[1] + '/up', 'w')\ntime.sleep(600)"
    monkeypatch.setattr(trackers, "module_command", lambda module, *words: [sys.executable, "-c", program, *map(str, words)])
    monkeypatch.setattr(trackers, "_PATIENCE_S", 0.0)
    monkeypatch.setattr(trackers, "write_report", lambda run, out: None)
    config = Config.model_validate({"model": "m", "data": {"files": ["f"]}, "run": {"track": ["wandb"]}})
    tracker = trackers.TrackerProcess(run, "wandb", config.run.hang_s, said.append)
    try:
        wait_until((tmp_path / "up").exists)
        tracker.look()
        assert not said, "not before its time"
        tracker._until = 0.0 if tracker._until < float("inf") else tracker._until
        tracker.look()
        tracker.look()
        assert [line.startswith("waiting for wandb to open") for line in said] == ([] if opens else [True]), said
    finally:
        tracker.end(0.0)


@pytest.mark.parametrize("code", [0, 1, -11])
def test_a_tracker_whose_process_ends_before_the_run_is_told_whatever_its_exit_code(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, said = RunFolder(tmp_path), list[str]()
    program = f"import os\nos.kill(os.getpid(), {-code})" if code < 0 else f"raise SystemExit({code})"
    monkeypatch.setattr(trackers, "module_command", lambda *_: [sys.executable, "-c", program])
    tracker = trackers.TrackerProcess(run, "wandb", 60.0, said.append)
    wait_until(lambda: tracker.look() or bool(said))
    how = {0: "ended before all was passed on (exit code 0)", 1: "failed (exit code 1)", -11: "failed (killed by SIGSEGV)"}
    assert said[0].startswith(f"wandb {how[code]}: it gets no more steps"), said
    tracker.end(0.0)
    assert len(said) == len(events(tmp_path, "tracking_failed")) == 1


def test_a_tracker_that_takes_no_steps_is_named_once_and_what_it_prints_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that tries again and again, or computes for ever, shows signs of life."""
    run, said = RunFolder(tmp_path), list[str]()
    memory, flood = tmp_path / "tracked-wandb.json", (MOST_OUTPUT >> 20) + 2
    program = (
        f"import sys, time, pathlib\nfor _ in range({flood}): sys.stdout.write('x' * (1 << 20))\n"
        f"sys.stdout.flush(); pathlib.Path('{memory}').write_text('{{}}')\ntime.sleep(600)"
    )
    monkeypatch.setattr(trackers, "module_command", lambda *_: [sys.executable, "-c", program])
    monkeypatch.setattr(trackers, "_OPENS_S", 0.0)
    tracker = trackers.TrackerProcess(run, "wandb", 600.0, said.append)
    tracker._hang_s, tracker._until = 0.0, float("inf")
    try:
        wait_until(memory.exists)
        tracker.look()
        tracker.look()
        assert not said, "it has taken all there is"
        for step in range(3):
            run.append(run.steps_file, {"step": step})
            tracker.look()
            tracker.look()
        assert [line.partition(":")[0] for line in said] == ["waiting for wandb to take steps"]
        assert (tmp_path / "track.log").stat().st_blocks * 512 < MOST_OUTPUT
    finally:
        tracker.end(0.0)


def test_a_run_that_was_given_up_answers_with_the_tracker_that_failed_after_its_summary(
    config_of: Callable[..., Path], tmp_path: Path
) -> None:
    """`train --json` printed the summary from before the tracker's end."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site/wandb.py").write_text(
        "class Session:\n    define_metric = log = alert = lambda *_, **__: None\n"
        "    def finish(self):\n        raise OSError('gone')\n\n\ndef init(**_):\n    return Session()\n"
    )
    (tmp_path / "f.yaml").write_text(json.dumps([{"when": {"step": 2}, "effect": "raise", "message": "lost"}]))
    run, path = tmp_path / "run", os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")])
    config = config_of(run={"track": ["wandb"], "standby": False, "trials": 0})
    words = ("train", config, "--run", run, "--json", "--faults", tmp_path / "f.yaml")
    done = holdfast(*words, env={"PYTHONPATH": path, forked.FORK: ""})
    assert done.returncode == 3, done.stderr
    assert json.loads(done.stdout)["trackers_failed"] == json.loads((run / "summary.json").read_text())["trackers_failed"] == ["wandb"]


def test_every_tracker_of_the_config_is_known() -> None:
    from holdfast.config.config import Run

    assert set(Run.model_fields["track"].annotation.__args__[0].__args__) == set(TRACKERS)  # type: ignore[union-attr]
