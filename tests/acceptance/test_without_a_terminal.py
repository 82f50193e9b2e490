"""Runs without a terminal: detached ones, terminals that close, looking on and leaving, stopping. All processes are real."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.numpy import load_file, save_file

from conftest import events, holdfast, kill, lines, processes_of, start, wait_until, write_config
from holdfast.base.identity import alive, identify
from holdfast.run.folder import RunFolder
from holdfast.supervision.standing import lives
from support import forked

Write = Callable[..., Path]
pytestmark = pytest.mark.usefixtures("nobody_left", "no_leftovers")


@pytest.fixture
def nobody_left(tmp_path: Path) -> Iterator[None]:
    """Kill the supervisors that a failed test left behind, before what they would start again."""
    yield
    for lock in tmp_path.rglob("supervisor.lock"):
        kill((living_supervisor(lock.parent) or {}).get("pid"))
        for pid in processes_of(lock.parent).values():
            kill(pid)


def living_supervisor(run: Path) -> dict[str, Any] | None:
    found: dict[str, Any] = json.loads((run / "supervisor.lock").read_bytes() or b"{}").get("identity") or {}
    return found if found and alive(found) else None  # type: ignore[arg-type]


def supervisor_of(run: Path) -> int:
    pid: int = json.loads((run / "supervisor.lock").read_text())["identity"]["pid"]
    return pid


def summary_of(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return found


RUN: dict[str, Any] = {"data": {"held_out": 0.1}, "train": {"steps": 300}}  # of the tests that compare with an undisturbed one


@pytest.fixture(scope="module")
def undisturbed_sha256(assets: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("undisturbed")
    done = holdfast("train", write_config(assets, folder / "run.yaml", **RUN), "--run", folder / "run", "--json")
    assert done.returncode == 0, done.stderr
    sha256: str = json.loads(done.stdout)["artifact_sha256"]
    return sha256


def test_a_detached_run_goes_on_alone_and_can_be_looked_on_at(config_of: Write, tmp_path: Path) -> None:
    config, run = config_of(data={"held_out": 0.1}, train={"steps": 200}), tmp_path / "run"
    done = holdfast("train", config, "--run", "run", "--detach", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for words in ("under way: step", "holdfast attach run\n", "holdfast status run\n", "holdfast stop run\n", "run/supervisor.log"):
        assert words in done.stdout
    pid = supervisor_of(run)
    assert os.getsid(pid) == pid, "it is in a session of its own"
    assert {Path(f"/proc/{pid}/fd/{number}").readlink() for number in (1, 2)} == {run / "supervisor.log"}
    looking_on = holdfast("attach", run)
    assert looking_on.returncode == 0, looking_on.stderr
    assert f"run: {run}" in looking_on.stdout
    assert "the steps are done; base and tuned model are being compared" in looking_on.stdout
    assert summary_of(run)["artifact_sha256"][:16] in looking_on.stdout
    assert not lives(RunFolder(run))
    wait_until(lambda: identify(pid) is None)
    log = (run / "supervisor.log").read_text()
    assert "holdfast train" in log.splitlines()[0] and "evaluating" in log
    assert summary_of(run)["attempts"] == 1
    again = holdfast("train", config, "--run", run, "--detach")
    assert again.returncode == 0
    assert "is finished" in again.stdout, "a finished run is shown, not begun again"


def test_with_json_a_detached_run_prints_its_status(config_of: Write, tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = holdfast("train", config_of(train={"steps": 5000}), "--run", run, "--detach", "--json")
    found = json.loads(done.stdout)
    assert (found["run"], found["state"], found["supervised"]) == (str(run), "running", True)
    assert found["step"] >= 1
    stopped = holdfast("stop", run, "--json")
    assert stopped.returncode == 0
    assert json.loads(stopped.stdout)["state"] == "interrupted"


def poison(model: Path, target: Path) -> Path:
    target.mkdir()
    for file in model.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    weights = load_file(target / "model.safetensors")
    first = min(weights)
    weights[first] = weights[first] * float("nan")
    save_file(weights, target / "model.safetensors", {"format": "pt"})
    return target


def test_what_keeps_a_detached_run_from_starting_is_told_with_its_exit_code(config_of: Write, assets: Any, tmp_path: Path) -> None:
    always = tmp_path / "faults.yaml"
    always.write_text(yaml.safe_dump({"faults": [{"when": {"phase": "forward"}, "effect": "raise", "message": "no luck today"}]}))
    empty = tmp_path / "empty.jsonl"
    empty.write_text('{"x": 1}\n')
    poisoned = poison(assets.model, tmp_path / "poisoned")
    cases: dict[str, tuple[Path, list[Any], int, str]] = {
        "a mistake in the config": (config_of("a", train={"stepz": 1}), [], 2, "train.stepz"),
        "no row to train on": (config_of("b", data={"files": [str(empty)]}), [], 1, "no row can be trained on"),
        "a model with NaN": (config_of("c", model=str(poisoned)), [], 1, "nan"),
        "a trainer that always dies": (config_of("d", run={"trials": 0}), ["--faults", always], 3, "no luck today"),
    }
    for case, (config, more, code, words) in cases.items():
        run = tmp_path / config.stem
        done = holdfast("train", config, "--run", run, "--detach", *more)
        assert done.returncode == code, (case, done.stdout, done.stderr)
        assert words in done.stderr.lower(), (case, done.stderr)
        assert done.stderr.startswith("holdfast: ") and "Traceback" not in done.stdout + done.stderr
        assert done.stderr.count("\n  -> ") == 1, (case, done.stderr)
        assert "under way" not in done.stdout
        assert not lives(RunFolder(run))
    given_up = holdfast("train", tmp_path / "d.yaml", "--run", tmp_path / "d", "--detach", "--faults", always, "--json")
    assert json.loads(given_up.stdout)["status"] == "gave_up"
    looked = holdfast("attach", tmp_path / "d")
    assert looked.returncode == 3 and "gave up before its first step" in looked.stderr


def test_ctrl_c_while_a_detached_run_begins_leaves_it_running(config_of: Write, tmp_path: Path) -> None:
    run = tmp_path / "run"
    asking = start("train", config_of(train={"steps": 200}), "--run", run, "--detach")
    wait_until(lambda: (run / "attempts").exists())
    asking.send_signal(signal.SIGINT)
    output, _ = asking.communicate()
    assert asking.returncode == 130
    assert "goes on with the run in the background; stop it: holdfast stop" in output
    wait_until(lambda: (run / "steps.jsonl").exists())
    assert supervisor_of(run) != asking.pid
    assert holdfast("stop", run).returncode == 0


class Terminal:
    """A real terminal: a pseudo-terminal that a command has as its controlling one."""

    def __init__(self, *arguments: object, cwd: Path | None = None) -> None:
        self.descriptor, end = pty.openpty()
        command = [sys.executable, "-m", "holdfast", *map(str, arguments)]
        surroundings = os.environ | {"TERM": "xterm"}
        self.process = subprocess.Popen(
            command, stdin=end, stdout=end, stderr=end, cwd=cwd, env=surroundings, start_new_session=True, preexec_fn=forked.take_terminal
        )
        self.pid = self.process.pid
        os.close(end)
        self.text = b""

    def read(self) -> None:
        """Take what is there; a full terminal would hold the command up."""
        os.set_blocking(self.descriptor, False)
        with contextlib.suppress(OSError):
            while more := os.read(self.descriptor, 65536):
                self.text += more

    def shows(self, *words: str) -> bool:
        self.read()
        return all(word.encode() in self.text for word in words)

    def matches(self, pattern: bytes) -> bool:
        self.read()
        return re.search(pattern, self.text) is not None

    def type(self, keys: bytes) -> None:
        os.write(self.descriptor, keys)

    def close(self) -> None:
        os.close(self.descriptor)

    def ended(self) -> int:
        while (code := self.process.poll()) is None:
            self.read()
            time.sleep(0.01)
        self.read()
        return code


def test_closing_the_terminal_costs_nothing_but_the_terminal(config_of: Write, undisturbed_sha256: str, tmp_path: Path) -> None:
    config, run = config_of(**RUN), tmp_path / "run"
    terminal = Terminal("train", config, "--run", run)
    wait_until(lambda: terminal.shows("step ", "  loss "))
    terminal.close()
    assert terminal.process.wait() == 0
    summary = summary_of(run)
    assert (summary["status"], summary["attempts"], summary["artifact_sha256"]) == ("finished", 1, undisturbed_sha256)
    assert not events(run, "attempt_adopted"), "the same supervisor watched all the while"
    log = (run / "supervisor.log").read_text()
    assert f"the terminal is gone; process {terminal.pid} continues" in log.splitlines()[0]
    assert "evaluating" in log and "finished" in log and "Traceback" not in log
    assert "\x1b" not in log, "no control codes"


def test_the_evaluation_counts_its_rows_and_goes_on_without_its_terminal(config_of: Write, tmp_path: Path) -> None:
    long_answers = {"max_new_tokens": 80}
    config, run = config_of(data={"held_out": 0.3}, train={"steps": 3}, evaluate=long_answers), tmp_path / "run"
    terminal = Terminal("train", config, "--run", run)
    wait_until(lambda: terminal.shows("evaluating") and (run / "plan.json").exists())
    rows = json.loads((run / "plan.json").read_text())["rows"]["held_out"]
    asked = 2 * (rows + 8)  # both models: each row's loss, and eight answers
    wait_until(lambda: terminal.matches(rb"\D[1-9]\d*/%d\D" % asked))
    terminal.close()
    assert terminal.process.wait() == 0
    assert summary_of(run)["loss"]["eval_tuned"] is not None
    log = (run / "supervisor.log").read_text()
    assert "finished" in log and "\x1b" not in log and "Traceback" not in log


def test_closing_the_terminal_during_the_preparation_ends_nothing(config_of: Write, tmp_path: Path) -> None:
    config, run = config_of(train={"steps": 3}), tmp_path / "run"
    terminal = Terminal("train", config, "--run", run)
    wait_until(lambda: (run / "run.json").exists())  # written after the lock, before the rows are read
    os.kill(terminal.pid, signal.SIGSTOP)
    assert not (run / "config.yaml").exists()
    terminal.close()
    os.kill(terminal.pid, signal.SIGCONT)
    assert terminal.process.wait() == 0
    assert summary_of(run)["status"] == "finished"


def test_a_pipe_that_nobody_reads_any_more_ends_nothing(config_of: Write, tmp_path: Path) -> None:
    run, config = tmp_path / "run", config_of(data={"held_out": 0.1}, train={"steps": 60})
    line = f"{shlex.quote(sys.executable)} -m holdfast train {config} --run {run} | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    assert done.stdout.splitlines()[-1] == "0", done
    assert done.stderr == ""
    assert summary_of(run)["status"] == "finished"
    assert "evaluating" in (run / "supervisor.log").read_text()


def test_leaving_a_run_one_looks_on_at_leaves_it_running(config_of: Write, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "run"
    assert holdfast("train", config_of(train={"steps": 5000}), "--run", run, "--detach").returncode == 0
    terminal = Terminal("attach", run)
    wait_until(lambda: terminal.shows(str(run), "/5,000", "  loss "))
    kill(processes_of(run)["trainer"])
    wait_until(lambda: terminal.shows("attempt 1: killed by SIGKILL"))
    terminal.type(b"\x03")
    assert terminal.ended() == 130
    assert terminal.shows("the run continues; to end it:", f"holdfast stop {run}"), "a command to copy stays whole"
    unnamed = Terminal("attach", cwd=tmp_path)  # the only living run need not be named
    wait_until(lambda: unnamed.shows(str(run)))
    unnamed.type(b"\x03")
    assert unnamed.ended() == 130
    assert lives(RunFolder(run))
    assert holdfast("stop", run).returncode == 0
    nothing = holdfast("attach", cwd=tmp_path)
    assert nothing.returncode == 2 and "is running" in nothing.stderr
    over = holdfast("attach", run)
    assert over.returncode == 130 and "resume with: holdfast train" in over.stdout


def test_a_stopped_run_has_its_step_saved_and_goes_on_to_the_same_weights(
    config_of: Write, undisturbed_sha256: str, tmp_path: Path
) -> None:
    config, run = config_of(**RUN), tmp_path / "run"
    assert holdfast("train", config, "--run", run, "--detach").returncode == 0
    supervisor = supervisor_of(run)
    os.kill(supervisor, signal.SIGTERM)
    done = holdfast("stop", run)
    assert done.returncode == 0, done.stderr
    assert "is not running: interrupted, step" in done.stdout
    assert identify(supervisor) is None and not processes_of(run)
    step = lines(run / "steps.jsonl")[-1]["step"]
    assert step < 300
    assert (run / "checkpoints" / f"step-{step:08d}" / "manifest.json").exists()
    assert summary_of(run)["status"] == "interrupted", "a second SIGTERM does not make the supervisor leave early"
    assert holdfast("stop", run).returncode == 0, "what does not run is stopped already"
    assert holdfast("train", config, "--run", run, "--detach").returncode == 0
    assert holdfast("attach", run).returncode == 0
    assert summary_of(run)["artifact_sha256"] == undisturbed_sha256


def test_stop_waits_for_a_supervisor_that_has_let_go_of_its_run_and_is_on_its_way_out(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    (folder.path / "run.json").write_text("{}")
    with subprocess.Popen(["sleep", "4"]) as leaving:
        folder.supervisor_lock.write_text(json.dumps({"identity": identify(leaving.pid)}))
        done = holdfast("stop", folder.path)
        assert done.returncode == 0, done.stderr
        assert identify(leaving.pid) is None


def test_a_detached_run_with_everything_killed_in_turn_ends_with_the_same_weights(
    config_of: Write, undisturbed_sha256: str, tmp_path: Path
) -> None:
    config, run = config_of(**RUN), tmp_path / "run"
    assert holdfast("train", config, "--run", run, "--detach").returncode == 0
    for role in ("trainer", "writer", "nurse"):
        wait_until(lambda role=role: kill(processes_of(run).get(role)))  # a writer that was seen may be on its way out
        wait_until(lambda: len(events(run, "attempt_started")) > 1)
    supervisor = supervisor_of(run)
    assert kill(supervisor)
    wait_until(lambda: living_supervisor(run) is None)
    assert holdfast("train", config, "--run", run, "--detach").returncode == 0
    assert holdfast("attach", run).returncode == 0
    summary = summary_of(run)
    assert (summary["status"], summary["artifact_sha256"]) == ("finished", undisturbed_sha256)
    assert [row["step"] for row in lines(run / "steps.jsonl")] == list(range(1, 301))


def test_a_run_that_nobody_watches_is_shown_and_stopped_all_the_same(config_of: Write, tmp_path: Path) -> None:
    config, run = config_of(train={"steps": 5000}), tmp_path / "run"
    assert holdfast("train", config, "--run", run, "--detach").returncode == 0
    kill(supervisor_of(run))
    terminal = Terminal("attach", run)
    wait_until(lambda: terminal.shows("no supervisor watches this run"))
    terminal.type(b"\x03")
    assert terminal.ended() == 130
    done = holdfast("stop", run)
    assert done.returncode == 0, done.stderr
    assert not processes_of(run)
    step = lines(run / "steps.jsonl")[-1]["step"]
    assert (run / "checkpoints" / f"step-{step:08d}" / "manifest.json").exists()
    assert summary_of(run)["status"] == "interrupted"


def test_stopping_a_run_that_is_only_being_prepared_ends_the_preparation(config_of: Write, tmp_path: Path) -> None:
    run = tmp_path / "run"
    preparing = start("train", config_of(), "--run", run)
    wait_until(lambda: (run / "run.json").exists())
    preparing.send_signal(signal.SIGSTOP)
    stopping = start("stop", run)
    assert stopping.stdout and "asked process" in stopping.stdout.readline()
    preparing.send_signal(signal.SIGCONT)
    output, _ = preparing.communicate()
    assert preparing.returncode == 130 and "nothing was trained yet" in output
    told, _ = stopping.communicate()
    assert stopping.returncode == 0 and "is not running: interrupted, step 0" in told


def test_a_held_run_is_refused_with_the_ways_to_it(config_of: Write, tmp_path: Path) -> None:
    config, run = config_of(train={"steps": 5000}), tmp_path / "run"
    assert holdfast("train", config, "--run", run, "--detach").returncode == 0
    for more in ([], ["--detach"]):
        refused = holdfast("train", config, "--run", run, *more)
        assert refused.returncode == 1
        assert f"held by process {supervisor_of(run)}" in refused.stderr
        assert f"holdfast attach {run}; stop it (it can be resumed): holdfast stop {run}" in refused.stderr
    assert holdfast("stop", run).returncode == 0
