"""A wish to stop is met at every stage: exit code 130, nothing started again, rerun the same command to resume."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import events, holdfast, lines, processes_of, start, wait_until
from holdfast.data.workers.interrupts import Interrupts

Write = Callable[..., Path]
pytestmark = pytest.mark.usefixtures("no_leftovers")


STAGES: dict[str, Callable[[Path], bool]] = {
    "the run is written down": lambda run: (run / "config.yaml").exists(),
    "the trainer has told its name": lambda run: (run / "attempts/001/rank0.json").exists(),
    "the first step is done": lambda run: (run / "steps.jsonl").exists(),
}


@pytest.mark.parametrize(
    ("stage", "number"),
    [*((stage, signal.SIGINT) for stage in STAGES), ("the first step is done", signal.SIGTERM)],
)
def test_a_run_is_stopped_at_any_stage(config_of: Write, tmp_path: Path, stage: str, number: int) -> None:
    config, run = config_of(train={"steps": 200}), tmp_path / "run"
    child = start("train", config, "--run", run)
    wait_until(lambda: STAGES[stage](run))
    child.send_signal(number)
    output, _ = child.communicate()
    assert child.returncode == 130, output
    assert "Traceback" not in output
    wait_until(lambda: not processes_of(run))  # the writer sees its trainer's end a moment later
    if (run / "attempts").exists():
        assert "rerun the same command to resume" in output
        assert json.loads((run / "summary.json").read_text())["status"] == "interrupted"
        assert len(events(run, "attempt_started")) == 1
    else:
        assert "nothing was trained yet; rerun the same command to start over" in output
    assert json.loads(holdfast("status", run, "--json").stdout)["runs"][0]["state"] == "interrupted"
    again = holdfast("train", config, "train.steps=200", "--run", run, "--json") if stage == "the first step is done" else None
    if again:
        assert again.returncode == 0, again.stderr
        assert [row["step"] for row in lines(run / "steps.jsonl")] == list(range(1, 201))


def is_pending(pid: int, number: int) -> bool:
    """Whether a signal was sent to a process and not taken yet."""
    told = [line.split()[1] for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith(("SigPnd", "ShdPnd"))]
    return any(int(mask, 16) >> (number - 1) & 1 for mask in told)


def test_a_second_ctrl_c_leaves_at_once_and_the_trainer_still_saves(config_of: Write, tmp_path: Path) -> None:
    config, run = config_of(train={"steps": 200}), tmp_path / "run"
    child = start("train", config, "--run", run)
    wait_until(lambda: (run / "attempts/001/rank0.json").exists())  # still importing: the first step is seconds away
    trainer = processes_of(run)["trainer"]
    os.kill(trainer, signal.SIGSTOP)  # so that it cannot end between the two
    child.send_signal(signal.SIGINT)
    wait_until(lambda: not is_pending(child.pid, signal.SIGINT))  # two that nobody has taken yet are one
    time.sleep(0.1)  # less than the supervisor takes to look whether it was asked
    child.send_signal(signal.SIGINT)
    output, _ = child.communicate()
    os.kill(trainer, signal.SIGCONT)
    assert child.returncode == 130
    assert "the trainer ends by itself" in output
    wait_until(lambda: not processes_of(run))
    assert json.loads((run / "attempts/001/result.json").read_text())["kind"] == "interrupted"
    assert holdfast("train", config, "--run", run).returncode == 0


def test_a_run_stopped_while_it_is_looked_at_again_is_told_where_it_stands(config_of: Write, tmp_path: Path) -> None:
    config, run = config_of(train={"steps": 200}), tmp_path / "run"
    child = start("train", config, "--run", run)
    wait_until(lambda: (run / "steps.jsonl").exists())
    child.send_signal(signal.SIGINT)
    child.communicate()
    again = start("train", config, "--run", run)
    wait_until(lambda: (json.loads((run / "supervisor.lock").read_bytes() or b"{}").get("identity") or {}).get("pid") == again.pid)
    again.send_signal(signal.SIGINT)
    output, _ = again.communicate()
    assert again.returncode == 130, output
    assert "rerun the same command to resume" in output
    assert "nothing was trained" not in output


def test_a_stop_during_the_final_evaluation_is_no_finish(config_of: Write, tmp_path: Path) -> None:
    config, run = config_of(data={"held_out": 0.1}, train={"steps": 3}), tmp_path / "run"
    child = start("train", config, "--run", run)
    wait_until(lambda: (run / "evaluation.log").exists())
    child.send_signal(signal.SIGINT)
    output, _ = child.communicate()
    assert child.returncode == 130, output
    assert "its evaluation is not; rerun the same command to resume" in output
    assert json.loads((run / "summary.json").read_text())["status"] == "interrupted"
    again = holdfast("train", config, "--run", run, "--json")
    assert again.returncode == 0, again.stderr
    summary = json.loads(again.stdout)
    assert (summary["status"], summary["attempts"], summary["steps"]) == ("finished", 1, 3)
    assert summary["loss"]["eval_tuned"] is not None


class Swallowing:
    """Its destructor is struck by Ctrl-C, as one of a library may be: Python prints the exception there and goes on."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_that_foreign_code_swallows_is_not_lost() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), Interrupts() as interrupts:
        Swallowing()
        assert interrupts.heard, "and nothing was raised"
        interrupts.check()
    with pytest.raises(KeyboardInterrupt), Interrupts():
        Swallowing()
    with Interrupts() as interrupts:
        interrupts.check()
    assert signal.getsignal(signal.SIGINT) is before
