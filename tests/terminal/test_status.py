"""What `holdfast status` says of runs in every state, living, dead and damaged. Living ones are real."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import errno
import fcntl
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import events, holdfast, kill, processes_of, start, wait_until
from holdfast.base.locks import taken
from holdfast.cli.commands.status import run as status_of
from holdfast.cli.commands.stop import run as stop
from holdfast.run.folder import RunFolder
from holdfast.supervision.preparation.lock import held
from holdfast.supervision.runs import entry
from holdfast.supervision.standing import look

Write = Callable[..., Path]
STATES = {"running", "finished", "gave_up", "interrupted", "dead"}
KEYS = {"run", "state", "step", "steps", "attempts", "last_incident", "pids"}
SLEEPER = "import fcntl, os, sys, time; fcntl.flock(os.open(sys.argv[1], os.O_RDWR | os.O_CREAT), 2); print(1, flush=True); time.sleep(600)"


def status(*arguments: object, cwd: Path | None = None) -> list[dict[str, Any]]:
    done = holdfast("status", *arguments, "--json", cwd=cwd)
    assert done.returncode == 0, done.stderr
    runs: list[dict[str, Any]] = json.loads(done.stdout)["runs"]
    for run in runs:
        assert set(run) >= KEYS and run["state"] in STATES
    return runs


def say(*arguments: object, cwd: Path | None = None) -> str:
    done = holdfast("status", *arguments, cwd=cwd)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A run folder as it lies there after seven of ten steps, in an attempt that was killed and in one that has no end."""
    run = tmp_path / "runs" / "made"
    run.mkdir(parents=True)
    files: dict[str, Any] = {
        "run.json": {"id": "ab" * 16},
        "plan.json": {"steps": 10},
        "config.yaml": {"model": "m", "data": {"files": ["f"]}},
        "timeline.jsonl": {"from_step": 1, "settings": {"steps": 10}, "reason": "plan"},
        "supervisor.lock": {"identity": {"pid": 1, "start": "1", "boot": "x"}, "host": "vm", "command": "holdfast train my.yaml"},
        "attempts/001/wreck.json": {
            "attempt": 1,
            "step": 3,
            "samples": [1],
            "words": "killed by SIGKILL",
            "died": 3.5,
            "committed_after": 2,
            "diagnosis": {"cause": "native_crash", "clues": []},
            "decision": {"remedy": "resume", "reason": "killed", "go_on": True},
        },
        "attempts/002/launch.json": {"started": 1.0},
    }
    for name, content in files.items():
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text(json.dumps(content) + "\n")
    rows = [{"step": k, "time": float(k), "attempt": 1 if k < 3 else 2, "samples": [k]} for k in range(1, 8)]
    (run / "steps.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    event = {"event": "restored", "attempt": 2, "step": 2, "state": "the newest snapshot", "time": 3.9}
    (run / "events.jsonl").write_text(json.dumps(event) + "\n")
    return run


def write_summary(run: Path, status: str, reason: str | None = None) -> None:
    (run / "summary.json").write_text(json.dumps({"status": status, "reason": reason}))


def write_result(run: Path, kind: str) -> None:
    (run / "attempts/002/result.json").write_text(json.dumps({"kind": kind}))


ENDED: dict[str, tuple[Callable[[Path], object], str]] = {
    "nothing says how it ended": (lambda run: None, "dead"),
    "finished": (lambda run: write_summary(run, "finished"), "finished"),
    "given up": (lambda run: write_summary(run, "gave_up", "out of luck"), "gave_up"),
    "stopped": (lambda run: write_summary(run, "interrupted"), "interrupted"),
    "stopped, and no supervisor was left to write a summary": (lambda run: write_result(run, "interrupted"), "interrupted"),
    "trained, but never evaluated": (lambda run: write_result(run, "finished"), "dead"),
    "only half prepared": (lambda run: [shutil.rmtree(run / "attempts"), (run / "config.yaml").unlink()], "dead"),
}


@pytest.mark.parametrize("case", ENDED)
def test_the_state_of_a_run_in_which_nobody_works(made: Path, case: str) -> None:
    change, state = ENDED[case]
    change(made)
    [run] = status(made)
    assert (run["state"], run["step"], run["steps"], run["pids"], run["problems"]) == (state, 7, 10, {}, [])
    text = say(made)
    assert "step 7 of 10 (70%)" in text
    assert ("resume with: holdfast train my.yaml" in text) == (state != "finished")
    assert ("gave up: out of luck" in text) == (state == "gave_up")


def test_the_last_incident_is_told_as_in_the_summary(made: Path) -> None:
    [run] = status(made)
    assert run["attempts"] == 2
    assert run["last_incident"] == {
        "step": 3,
        "cause": "native_crash",
        "samples": [1],
        "remedy": "resume",
        "evidence": "attempt 1: killed by SIGKILL; went on from the newest snapshot, no committed step computed again",
        "lost_steps": 0,
        "seconds_to_recover": 0.5,
        "attempt": 1,
        "ending": "killed by SIGKILL",
    }
    assert "last incident: step 3: attempt 1: killed by SIGKILL; went on from" in say(made)


def cut(name: str) -> Callable[[Path], object]:
    return lambda run: (run / name).write_bytes((run / name).read_bytes()[:9])


def scribble(name: str) -> Callable[[Path], object]:
    return lambda run: (run / name).write_bytes(b"\x00\xff{{not json\n")


def as_folder(name: str) -> Callable[[Path], object]:
    return lambda run: [(run / name).unlink(missing_ok=True), (run / name).mkdir()]


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "summary cut": (lambda run: [write_summary(run, "finished"), cut("summary.json")(run)], "summary.json is damaged"),
    "summary is a list": (lambda run: (run / "summary.json").write_text("[1]"), "summary.json is damaged"),
    "summary is a folder": (as_folder("summary.json"), "summary.json cannot be read"),
    "steps scribbled over": (scribble("steps.jsonl"), "steps.jsonl cannot be read"),
    "steps are of another kind": (lambda run: (run / "steps.jsonl").write_text('{"step": "x"}\n'), "steps.jsonl cannot be read"),
    "steps are numbers": (lambda run: (run / "steps.jsonl").write_text("3\n4\n"), "steps.jsonl cannot be read"),
    "timeline scribbled over": (scribble("timeline.jsonl"), "timeline.jsonl cannot be read"),
    "timeline gone": (lambda run: (run / "timeline.jsonl").unlink(), "timeline.jsonl is missing"),
    "events scribbled over": (scribble("events.jsonl"), "cannot be read"),
    "wreck of another kind": (lambda run: (run / "attempts/001/wreck.json").write_text('{"decision": 1}'), "its incidents cannot be read"),
    "config gone": (lambda run: (run / "config.yaml").unlink(), "config.yaml is missing"),
    "name gone": (lambda run: (run / "run.json").unlink(), "run.json is missing"),
    "lock is a folder": (as_folder("supervisor.lock"), "supervisor.lock cannot be read"),
    "attempts are a file": (lambda run: [shutil.rmtree(run / "attempts"), (run / "attempts").write_text("")], ""),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_folder_is_a_line_that_names_the_damage(made: Path, case: str) -> None:
    damage, words = DAMAGE[case]
    damage(made)
    assert words in "\n".join(status(made)[0]["problems"])
    other = shutil.copytree(made, made.with_name("whole"), ignore=lambda *_: ["supervisor.lock", "summary.json"])
    text = say(cwd=made.parent.parent)
    assert words in text and str(other.name) in text
    assert "Traceback" not in text


def test_a_torn_last_line_is_no_damage(made: Path) -> None:
    with (made / "steps.jsonl").open("a") as journal:
        journal.write('{"step": 8, "ti')
    [run] = status(made)
    assert (run["step"], run["problems"]) == (7, [])


def test_all_runs_of_a_folder_and_nothing_else(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made, tmp_path / "runs" / "another run")
    (tmp_path / "runs" / "rows").mkdir()
    (tmp_path / "runs" / "note.txt").write_text("")
    names = ["another run", "made"]
    assert [Path(run["run"]).name for run in status(cwd=tmp_path)] == names
    assert [Path(run["run"]).name for run in status(tmp_path / "runs")] == names
    assert "'runs/another run'  dead" in say(cwd=tmp_path)
    assert status(cwd=tmp_path / "runs" / "rows") == []
    assert "no runs in" in say(cwd=tmp_path / "runs" / "rows")


def test_what_is_no_run_is_refused_with_the_name_that_was_meant(made: Path, tmp_path: Path) -> None:
    for wrong, words in {
        "made": "do you mean runs/made?",
        "nix": "No such file or directory",
        str(made / "attempts"): "it holds no run",
    }.items():
        done = holdfast("status", wrong, cwd=tmp_path)
        assert done.returncode == 2
        assert words in done.stderr


def test_a_run_on_another_machine_is_seen_by_its_lock(made: Path) -> None:
    """Another machine with the same disk holds the lock; here, a process whose pid the holder's entry does not name."""
    text = (made / "supervisor.lock").read_text().replace('"vm"', '"node17"')
    (made / "supervisor.lock").write_text(text)
    with subprocess.Popen([sys.executable, "-c", SLEEPER, str(made / "supervisor.lock")], stdout=subprocess.PIPE) as other:
        assert other.stdout and other.stdout.readline()
        [run] = status(made)
        assert (run["state"], run["supervised"], run["pids"], run["host"]) == ("running", True, {}, "node17")
        assert "on node17: its processes cannot be seen from here" in say(made)
        stopped = holdfast("stop", made)
        assert stopped.returncode == 1
        assert "runs on node17" in stopped.stderr
        other.kill()
    assert status(made)[0]["state"] == "dead"


def test_looking_changes_nothing_and_keeps_nobody_from_the_run(made: Path, tmp_path: Path) -> None:
    before = sorted(str(path) for path in made.rglob("*"))
    look(RunFolder(made))
    assert not taken(made / "no.lock")
    assert sorted(str(path) for path in made.rglob("*")) == before
    descriptor = os.open(made / "supervisor.lock", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)  # somebody asks who is there, a little longer than usual
    threading.Timer(0.06, os.close, [descriptor]).start()
    with held(made):
        assert taken(made / "supervisor.lock")


@pytest.mark.usefixtures("no_leftovers")
def test_a_run_from_its_preparation_through_every_loss_to_its_end(config_of: Write, tmp_path: Path) -> None:
    config, run = config_of(train={"steps": 3000}, run={"standby": False}), tmp_path / "run"
    command = ("train", config, "--run", run)
    supervisor = start(*command)
    wait_until(lambda: (run / "supervisor.lock").exists() and (run / "supervisor.lock").stat().st_size > 0)
    supervisor.send_signal(signal.SIGSTOP)
    assert not (run / "config.yaml").exists()
    [now] = status(run)
    assert (now["state"], now["doing"], now["step"], now["steps"]) == ("running", "preparing", 0, None)
    assert now["pids"] == {"supervisor": supervisor.pid}
    supervisor.send_signal(signal.SIGCONT)

    wait_until(lambda: (run / "steps.jsonl").exists())
    [now] = status(run)
    living = processes_of(run)
    assert (now["state"], now["doing"], now["supervised"], now["steps"]) == ("running", "training", True, 3000)
    assert now["pids"] == {"supervisor": supervisor.pid, "shim": living["nurse"]} | {role: living[role] for role in ("trainer", "writer")}

    kill(living["trainer"])
    supervisor.stdout.close()  # type: ignore[union-attr]
    wait_until(lambda: look(RunFolder(run)).attempts == 2 and look(RunFolder(run)).doing == "training")
    [now] = status(run)
    assert now["last_incident"]["attempt"] == 1
    assert "killed by SIGKILL" in say(run)

    kill(supervisor.pid)
    supervisor.wait()
    [now] = status(run)
    assert (now["state"], now["doing"], now["supervised"]) == ("running", "training", False)
    assert set(now["pids"]) == {"shim", "trainer", "writer"}
    assert [sign["sign"] for sign in now["signs"]] == ["not_supervised"]
    text = say(run)
    assert "no supervisor watches it" in text
    assert "resume with: holdfast train" in text
    assert f"resume with: cd {shlex.quote(str(Path.cwd()))} && holdfast train" in say(run, cwd=tmp_path)

    again = start(*command)
    wait_until(lambda: (run / "events.jsonl").read_text().count("attempt_adopted") == 1)
    [now] = status(run)
    assert (now["supervised"], now["pids"]["supervisor"]) == (True, again.pid)
    assert holdfast("stop", run).returncode == 0
    assert again.wait() == 130
    again.stdout.close()  # type: ignore[union-attr]
    [now] = status(run)
    assert (now["state"], now["pids"], now["supervised"]) == ("interrupted", {}, False)
    assert len(events(run, "attempt_started")) == 2


def test_a_run_that_was_stopped_before_it_was_prepared_is_interrupted_and_has_nothing_to_report(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "begun"
    with contextlib.suppress(KeyboardInterrupt), held(run):
        raise KeyboardInterrupt
    assert look(RunFolder(run)).state == "interrupted"
    report = holdfast("report", run)
    assert report.returncode == 2 and "was not prepared to its end" in report.stderr and "status" in report.stderr
    with held(run):
        pass
    assert look(RunFolder(run)).state == "dead", "nobody says that it was stopped this time"


def test_a_command_that_only_holds_a_run_is_not_told_as_the_one_that_goes_on_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `holdfast stop` where no supervisor is left, and `holdfast move`."""
    run = tmp_path / "runs" / "one"
    monkeypatch.setattr(sys, "argv", ["holdfast", "train", "my.yaml"])
    with held(run):
        pass
    monkeypatch.setattr(sys, "argv", ["holdfast", "stop", "runs/one"])
    with held(run, goes_on=False):
        holder = look(RunFolder(run)).holder
        assert (holder["command"], holder["identity"]["pid"]) == ("holdfast train my.yaml", os.getpid())
    assert entry(look(RunFolder(run)))["command"] == "holdfast train my.yaml"


def test_a_run_of_which_no_command_is_known_is_not_resumed_with_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As one that `holdfast move` has fetched."""
    RunFolder(tmp_path).write_id("a")
    assert stop(argparse.Namespace(run_folder=tmp_path, json=False))[0] == 0
    said = capsys.readouterr()
    assert "is not running: dead" in said.out + said.err and "None" not in said.out + said.err


def _closed_to(call: Callable[..., Any], folder: Path, itself: bool) -> Callable[..., Any]:
    """Have a call refuse what lies in a folder, as the system does where a user may not enter it; itself: and the folder."""

    def refused(path: Any = ".", *more: Any, **how: Any) -> Any:
        at = Path(path) if isinstance(path, (str, os.PathLike)) else Path()
        if folder in at.parents or (itself and at == folder):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return call(path, *more, **how)

    return refused


def test_a_folder_that_may_not_be_read_is_told_and_does_not_look_like_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As one that `sudo holdfast train` has made."""
    closed = tmp_path / "runs" / "theirs"
    closed.mkdir(parents=True)
    monkeypatch.setattr(os, "access", lambda folder, mode: folder != closed)
    for name in ("stat", "lstat", "scandir"):
        monkeypatch.setattr(os, name, _closed_to(getattr(os, name), closed, itself=name == "scandir"))
    for place in (closed.parent, closed):
        code, answer = status_of(argparse.Namespace(place=place, json=False))
        assert (code, answer["runs"], answer["closed"]) == (0, [], [str(closed)])
        assert "may not be read by this user" in capsys.readouterr().out


def test_the_last_evaluation_is_said_and_no_time_is_made_up() -> None:
    from holdfast.cli.commands.status import _living

    one = {
        "state": "running",
        "pids": {"supervisor": 1},
        "host": "vm",
        "last_step_time": None,
        "supervised": True,
        "readings": None,
        "signs": [],
    }
    none_left = {"low": 0.0, "likely": 0.0, "high": 0.0}
    [line] = _living(one | {"doing": "evaluating", "step": 10, "steps": 10, "seconds_left": none_left})
    assert line.startswith("evaluating on vm: supervisor in process 1; ")
    assert line.endswith("; all steps are done, and what was made is evaluated: how long that takes is not known")
    [line] = _living(
        one | {"doing": "evaluating", "step": 5, "steps": 10, "seconds_left": none_left | {"likely": 9.0, "high": 9.0, "low": 9.0}}
    )
    assert line.endswith("about 9 s left")


def test_readings_that_nobody_takes_any_more_are_not_told_as_the_machine_is_now(tmp_path: Path) -> None:
    """As where the supervisor was killed, and with it what reads, while the trainer goes on."""
    living = dataclasses.replace(look(RunFolder(tmp_path)), state="running")

    def told(newest: float) -> object:
        rows = [{"time": time.time() - newest - 2.0 * k, "gpus": [], "processors_busy": 0.5} for k in reversed(range(12))]
        (tmp_path / "readings.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return entry(living)["readings"]

    assert told(1.0) and told(3600.0) is None


@pytest.mark.parametrize("journal", ["steps.jsonl", "progress.jsonl"])
def test_time_left_follows_from_the_journal_that_the_run_has(tmp_path: Path, journal: str) -> None:
    run = RunFolder(tmp_path)
    if journal == "progress.jsonl":
        run.command_file.write_text("{}")
    rows = [{"step": k, "time": 100.0 + 2.0 * k, "attempt": 1, "total": 50} for k in range(1, 11)]
    (tmp_path / journal).write_text("".join(json.dumps(row) + "\n" for row in rows))
    living = dataclasses.replace(look(run), state="running", steps=50)
    assert entry(living)["seconds_left"] == {"low": 80.0, "likely": 80.0, "high": 80.0}
    assert entry(dataclasses.replace(living, steps=10))["seconds_left"] is None, "the last evaluation takes as long as it takes"
