"""The callback inside a Trainer: what a killed one goes on from, what a NaN does not reach, what a wrong resume does not get past."""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import ROOT, fill, holdfast
from holdfast.base.files import read_json, write_json
from holdfast.callback.account import ATTEMPT, Account
from holdfast.processes.attempt import Attempt
from holdfast.run.command import Command
from holdfast.run.folder import RunFolder
from holdfast.run.outcomes import exit_code
from holdfast.run.types import Ending
from holdfast.supervision.command import states as states_module
from holdfast.supervision.command.command_run import CommandRun
from holdfast.supervision.command.signs import Signs
from holdfast.supervision.command.states import States
from holdfast.supervision.foreign_checkpoints import kept
from holdfast.supervision.foreign_checkpoints.kept import make_checkpoint
from holdfast.supervision.foreign_checkpoints.proof import prove
from holdfast.supervision.policy.moves import GiveUp
from holdfast.supervision.policy.next_move import next_move
from holdfast.supervision.supervise import View

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")
SCRIPT = ROOT / "tests/support/small_trainer.py"
STEPS = 10


def test_the_callbacks_exit_codes_are_those_of_the_table() -> None:
    from holdfast.callback import hf

    told = {name: code for name, code in vars(hf).items() if name.startswith("EXIT_")}
    assert told == {
        "EXIT_NONFINITE": exit_code("nonfinite"),
        "EXIT_WRONG_RESUME": exit_code("wrong_resume"),
        "EXIT_STOPPED": exit_code("interrupted"),
    }


@pytest.mark.parametrize("code", [69, 74])
def test_a_wrong_resume_is_read_from_its_account_whichever_its_code(code: int, tmp_path: Path) -> None:
    run, command = RunFolder(tmp_path), Command(("true",), str(tmp_path), callback=True)
    attempt = Attempt(1, run.attempt(1), None)
    attempt.folder.mkdir(parents=True)
    cause = {"cause": "checkpoint_model_mismatch", "reason": "2 of 9 tensors do not hold what was saved", "final": True}
    write_json(attempt.folder / "account.json", cause)
    known = CommandRun(run, command, View(print, print, lambda: 0)).collect(attempt, Ending("error", code, 3.0), earlier=False)
    move = next_move(known, None, stop=False)
    assert known.diagnosis.cause == "checkpoint_model_mismatch"
    assert isinstance(move, GiveUp) and "do not hold what was saved" in move.reason


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Train the small model in this process with the callback, as attempt 1 of a run; a fault leaves it where it was."""
    from transformers import TrainingArguments

    from holdfast.callback import hf
    from holdfast.hf import HoldfastCallback
    from support.small_trainer import Asks, Ours, Rows, build

    attempt = tmp_path / "run/attempts/001"
    attempt.mkdir(parents=True)
    monkeypatch.setenv("HOLDFAST_ATTEMPT", str(attempt))
    monkeypatch.setenv("HOLDFAST_SNAPSHOT", str(tmp_path / "snapshot"))
    monkeypatch.setenv("HOLDFAST_SNAPSHOT_SHARE", "1e9")
    monkeypatch.setattr("holdfast.callback.account._SHARE", 1e9)  # each pulse is written, however busy the machine is

    def run(faults: str = "", resume: Path | None = None, callback: bool = True, two: bool = False, asked: int = 0, **changed: Any) -> Any:
        told: dict[str, Any] = {
            "output_dir": str(tmp_path / "out"), "max_steps": STEPS, "save_steps": 4, "per_device_train_batch_size": 4, "seed": 3,
            "learning_rate": 1e-2, "report_to": "none", "use_cpu": True, "disable_tqdm": True,
        }  # fmt: skip
        held_out = ({"one": Rows(), "two": Rows()} if two else Rows()) if asked or "eval_strategy" in changed else None
        hf._first.clear()  # each is as one of a process of its own
        hf._trainings.clear()
        trainer = build(TrainingArguments(**told | changed), Ours(faults), held_out)
        if callback:
            trainer.add_callback(HoldfastCallback(trainer, drops=3))
        if asked:
            trainer.add_callback(Asks(asked))
        with contextlib.suppress(RuntimeError):
            trainer.train(resume_from_checkpoint=str(resume) if resume else None)
        return trainer

    return run


def inside(place: Path) -> list[str]:
    file = place / "run/attempts/001/inside.jsonl"
    return [json.loads(line)["event"] for line in file.read_text().splitlines()] if file.exists() else []


def noted(place: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (place / "run/attempts/001/samples.jsonl").read_text().splitlines()]


def test_a_trainer_that_dies_goes_on_from_its_last_step_and_ends_with_the_same_bits(
    tmp_path: Path, train: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from support.small_trainer import Rows, digest

    whole = digest(train(callback=False, output_dir=str(tmp_path / "plain")).model)
    read: list[int] = []
    monkeypatch.setattr(Rows, "__getitem__", lambda self, at, get=Rows.__getitem__: (read.append(at), get(self, at))[1])
    train("raise:8:*")
    told = noted(tmp_path)
    assert told[-2:] == [{"done": 7}, {"step": 8, "samples": told[-1]["samples"]}], "the step in flight"
    before = [row["samples"] for row in told if "step" in row]
    assert [at for rows in before for at in rows] == read[: 8 * 4], "the rows that were read, in their order"
    pulse = json.loads((tmp_path / "run/attempts/001/pulse.json").read_text())
    assert (pulse["step"], pulse["steps"]) == (7, STEPS)
    assert make_checkpoint(sys.executable, tmp_path / "snapshot", tmp_path / "out", newer_than=4) == "checkpoint-7"
    made, theirs = tmp_path / "out/checkpoint-7", tmp_path / "out/checkpoint-4"
    prove(made, "trainer", theirs)
    assert {file.name for file in made.iterdir()} == {file.name for file in theirs.iterdir()}
    assert digest(train(resume=made).model) == whole
    assert next(row for row in noted(tmp_path)[-6:] if "step" in row) == told[-1], "it begins with the same rows"
    assert "resume_proven" in inside(tmp_path)
    assert make_checkpoint(sys.executable, tmp_path / "snapshot", tmp_path / "out", newer_than=STEPS) == "", "no newer state"


PLATEAU = {
    "lr_scheduler_type": "reduce_lr_on_plateau", "metric_for_best_model": "eval_loss",
    "lr_scheduler_kwargs": {"patience": 0, "threshold": 1.0},
}  # fmt: skip
CLOCKS = ("runtime", "per_second", "preparation_time")  # ends of the names of what a clock gives


def logged(trainer: Any) -> list[dict[str, Any]]:
    """Rows but for what a clock gives; a mean over several steps is one of those since the newest start."""
    means = trainer.args.logging_steps not in (1, 500)
    rows = [row for row in trainer.state.log_history if "train_loss" not in row]
    return [{key: value for key, value in row.items() if not key.endswith(CLOCKS) and not (means and key == "loss")} for row in rows]


@pytest.mark.parametrize(
    ("faults", "each", "at"),
    [
        ("raise:8:*", {"logging_steps": 1}, 7),  # a step
        ("cut:6:1", {"logging_steps": 1, "eval_strategy": "steps", "eval_steps": 3}, 5),  # an evaluation
        ("raise:7:1", {"logging_steps": 1, "eval_strategy": "steps", "eval_steps": 3}, 6),  # right after one
        ("cut:6:1", {"logging_strategy": "epoch", "eval_strategy": "epoch", "logging_steps": 6}, 5),  # the evaluation at an epoch's end
        ("cut:6:1", {"logging_steps": 1, "eval_strategy": "steps", "eval_steps": 6, "two": True}, 5),  # the second of two data sets
        ("log:6:1", {"logging_steps": 3}, 5),  # while the row is written
        ("raise:7:1", {"logging_steps": 1, "eval_strategy": "steps", "eval_steps": 2, **PLATEAU}, 6),  # a rate that evaluations lower
        ("cut:6:1", {"logging_strategy": "epoch", "eval_strategy": "epoch", "logging_steps": 6, "gradient_accumulation_steps": 2}, 5),
        ("cut:6:1", {"logging_steps": 1, "asked": 6}, 5),  # an evaluation that a later callback asked for
    ],
)
def test_each_row_and_each_evaluation_of_a_killed_training_is_in_its_log_once(
    faults: str, each: dict[str, Any], at: int, tmp_path: Path, train: Callable[..., Any]
) -> None:
    from support.small_trainer import digest

    whole = train(output_dir=str(tmp_path / "whole"), **each)
    train(faults, **each)
    assert make_checkpoint(sys.executable, tmp_path / "snapshot", tmp_path / "out", newer_than=4) == f"checkpoint-{at}"
    again = train(resume=tmp_path / f"out/checkpoint-{at}", **each)
    assert logged(again) == logged(whole) and digest(again.model) == digest(whole.model)
    assert again.state.best_metric == whole.state.best_metric
    assert any(row["step"] == 6 for row in logged(again))


@pytest.mark.parametrize("fate", ["waits", "was killed", "no memory for it"])
def test_a_helper_that_waits_for_the_death_makes_the_checkpoint(
    fate: str, tmp_path: Path, train: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    train("raise:8:*")
    started: list[subprocess.Popen[str]] = []
    helper_of = kept.start_helper
    for module in (kept, states_module):
        monkeypatch.setattr(module, "start_helper", lambda python: started.append(helper_of(python)) or started[-1])
    room = {"MemAvailable": (1 if fate == "no memory for it" else 8) << 30}
    monkeypatch.setattr(states_module, "host_memory", lambda: room)
    run, said = RunFolder(tmp_path / "run"), list[str]()
    attempt = Attempt(1, run.attempt(1), None)
    states = States(run, Command(("python",), str(tmp_path), checkpoints="out", callback=True), None, said.append)
    states.snapshot = tmp_path / "snapshot"
    for _ in range(2):  # it is asked at each step
        states.await_death(attempt)
    assert len(started) == (fate != "no memory for it")
    if fate == "was killed":
        started[0].kill()
        started[0].wait()
    states.keep(attempt)
    assert said == ["checkpoint-7 was made of the newest whole state in memory"]
    prove(tmp_path / "out/checkpoint-7", "trainer", tmp_path / "out/checkpoint-4")
    assert len(started) == (2 if fate == "was killed" else 1) and started[-1].returncode == 0
    (tmp_path / "snapshot").touch()
    states.await_death(attempt)
    states.release()
    assert all(helper.poll() is not None for helper in started), "none outlives the run"


def test_a_trainer_that_dies_after_its_last_step_computes_no_other(tmp_path: Path, train: Callable[..., Any]) -> None:
    from support.small_trainer import digest

    whole = digest(train(lr_scheduler_type="constant").model)
    again = train(resume=tmp_path / f"out/checkpoint-{STEPS}", lr_scheduler_type="constant")
    assert digest(again.model) == whole and again.state.global_step == STEPS
    assert again.state.log_history[-1]["train_loss"] == 0, "of no step, as a Trainer says it at the end of an epoch"
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["checkpoint-10", "checkpoint-4", "checkpoint-8"]


def test_what_the_helper_writes_is_what_the_trainer_would_have_written(tmp_path: Path, train: Callable[..., Any]) -> None:
    from holdfast.callback import keep

    train("raise:9:*", save_steps=8)
    theirs = tmp_path / "out/checkpoint-8"
    theirs.rename(tmp_path / "theirs")
    keep.keep(tmp_path / "snapshot", tmp_path / "out", 0)
    for file in (tmp_path / "theirs").iterdir():
        made = tmp_path / "out/checkpoint-8" / file.name
        if file.suffix in (".pt", ".pth"):
            assert same(*(torch.load(one, weights_only=False) for one in (made, file))), file.name
        else:
            assert made.read_bytes() == file.read_bytes(), file.name


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool((one == other).all()) if hasattr(one, "shape") else bool(one == other)


@pytest.mark.parametrize(("faults", "dropped", "ends"), [("nan:3:*,nan:6:*", 2, False), ("nan:3:*,nan:4:*,nan:5:*", 3, True)])
def test_a_gradient_that_is_not_finite_does_not_reach_the_weights(
    tmp_path: Path, train: Callable[..., Any], faults: str, dropped: int, ends: bool
) -> None:
    with pytest.raises(SystemExit) if ends else contextlib.nullcontext():
        trainer = train(faults)
        assert all(torch.isfinite(one).all() for one in trainer.model.parameters())
        assert not all(torch.isfinite(one).all() for one in train(faults, callback=False).model.parameters()), "without it they are lost"
    assert inside(tmp_path).count("gradients_dropped") == dropped
    account = tmp_path / "run/attempts/001/account.json"
    assert account.exists() == ends and (not ends or json.loads(account.read_text())["cause"] == "nonfinite_numerics")


def test_a_resume_that_puts_the_adapter_back_to_its_start_is_caught(tmp_path: Path, train: Callable[..., Any]) -> None:
    train("raise:6:*")
    with pytest.raises(SystemExit):
        train("forget", resume=tmp_path / "out/checkpoint-4")
    account = json.loads((tmp_path / "run/attempts/001/account.json").read_text())
    assert account["final"] and "tensors do not hold what was saved" in account["reason"]


def test_an_error_of_the_callbacks_own_ends_nothing(tmp_path: Path, train: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.callback.account import Account
    from holdfast.callback.gate import GradientGate

    monkeypatch.setattr(GradientGate, "passes", lambda *_: 1 // 0)
    monkeypatch.setattr(Account, "pulse", lambda *_, **__: None)
    assert train().state.global_step == STEPS
    assert inside(tmp_path).count("callback_error") == 1


def test_a_full_disk_under_the_snapshot_ends_snapshots_alone(
    tmp_path: Path, train: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_SNAPSHOT", str(tmp_path / "nowhere/snapshot"))
    state = train(logging_steps=5).state
    assert state.global_step == STEPS
    pulse = json.loads((tmp_path / "run/attempts/001/pulse.json").read_text())
    assert pulse["loss"] == [row["loss"] for row in state.log_history if "loss" in row][-1], "what is logged after the last step"
    assert inside(tmp_path) == ["no_snapshots"]


def test_a_state_is_kept_no_oftener_than_its_share_of_the_time_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.callback import packed

    now, kept = [0.0], 0
    monkeypatch.delenv("HOLDFAST_SNAPSHOT_SHARE", raising=False)
    monkeypatch.setattr(packed.time, "perf_counter", lambda: now[0])
    packer = packed.Packer(tmp_path / "state", "run")
    for _ in range(1000):
        now[0] += 0.1  # a step
        if packer.due():
            now[0] += 0.05  # what keeping it costs
            packer.keep([torch.ones(3)], {})
            kept += 1
    assert 30 < kept < 50 and 0.05 * kept / (0.1 * 1000) <= 1.1 * packed.SHARE


def test_a_loss_that_is_not_finite_leaves_the_pulse_to_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ATTEMPT, str(tmp_path))
    Account().pulse(at_once=True, step=3, loss=math.nan)
    told = read_json(tmp_path / "pulse.json")
    assert told is not None and (told["step"], told["loss"]) == (3, None)


def test_a_sitecustomize_that_was_there_before_is_run_and_nothing_is_imported(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os; os.environ['THEIRS'] = 'ran'")
    ours = ROOT / "src/holdfast/callback/site"
    script = "import os, sys; print(os.environ['THEIRS'], 'torch' in sys.modules, sys.meta_path[0].__module__)"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ours), str(tmp_path)])}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.split() == ["ran", "False", "sitecustomize"]


def test_what_runs_in_other_programs_needs_nothing_but_torch() -> None:
    import ast

    allowed = sys.stdlib_module_names | {"torch", "transformers", "peft", "safetensors", "numpy"}
    for file in [*(ROOT / "src/holdfast/callback").rglob("*.py"), ROOT / "src/holdfast/hf.py", ROOT / "src/holdfast/guard.py"]:
        for node in ast.walk(ast.parse(file.read_text())):
            names = (
                [one.name for one in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            others = {name for name in names if name.partition(".")[0] not in allowed}
            assert all(name.startswith("holdfast.callback") or name == "holdfast.hf" for name in others), (file, others)


def test_a_plain_loop_goes_on_from_its_last_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.guard import guard

    (tmp_path / "run/attempts/001").mkdir(parents=True)

    def loop(dies_after: int) -> float:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        with guard(model, optimizer, steps=12) as held:
            for step in range(held.resume(), 12):
                loss = model(torch.randn(4, 8)).square().mean() * (float("nan") if step == 5 else 1)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                held.step(step, loss)
                if step == dies_after:
                    return 0.0
            held.done()
        return sum(float(one.double().sum()) for one in model.parameters())

    alone = loop(99)
    monkeypatch.setenv("HOLDFAST_ATTEMPT", str(tmp_path / "run/attempts/001"))
    monkeypatch.setenv("HOLDFAST_SNAPSHOT", str(tmp_path / "snapshot"))
    monkeypatch.setenv("HOLDFAST_SNAPSHOT_SHARE", "1e9")
    loop(7)
    assert loop(99) == alone
    assert inside(tmp_path) == ["gradients_dropped", "loop_resumed"]


def test_a_loop_of_several_processes_keeps_no_state_that_one_of_them_alone_would_go_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.guard import guard

    (tmp_path / "run/attempts/001").mkdir(parents=True)
    monkeypatch.setenv("HOLDFAST_ATTEMPT", str(tmp_path / "run/attempts/001"))
    monkeypatch.setenv("HOLDFAST_SNAPSHOT", str(tmp_path / "snapshot"))
    monkeypatch.setenv("RANK", "0")

    def began_at(processes: int) -> int:
        monkeypatch.setenv("WORLD_SIZE", str(processes))
        model = torch.nn.Linear(2, 1)
        with guard(model, torch.optim.SGD(model.parameters(), lr=0.1)) as held:
            began = held.resume()
            held.step(began)
            return began

    assert [began_at(2), began_at(2), began_at(1), began_at(1)] == [0, 0, 0, 1]
    assert inside(tmp_path) == ["no_snapshots", "no_snapshots", "loop_resumed"]


def test_a_plain_loop_goes_on_where_there_is_no_room_for_its_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's /dev/shm is often too small for it; the loop ended at its first step."""
    from holdfast.guard import guard

    (tmp_path / "run/attempts/001").mkdir(parents=True)
    monkeypatch.setenv("HOLDFAST_ATTEMPT", str(tmp_path / "run/attempts/001"))
    monkeypatch.setenv("HOLDFAST_SNAPSHOT", str(tmp_path / "nowhere/snapshot"))
    model = torch.nn.Linear(2, 1)
    with guard(model, steps=3) as held:
        for step in range(held.resume(), 3):
            held.step(step)
        held.done()
    assert inside(tmp_path) == ["no_snapshots"]


LOOP = """
import os, sys, torch
from holdfast.guard import guard
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
with guard(model, optimizer, steps=12) as held:
    for step in range(held.resume(), 12):
        loss = model(torch.randn(4, 8)).square().mean()
        if step == 5:
            loss = loss * float("nan")
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        held.step(step, loss)
        if step == 7 and "die" in sys.argv and not os.path.exists("died"):
            open("died", "w").close()
            os.kill(os.getpid(), 9)
    held.done()
print("weights", sum(float(one.double().sum()) for one in model.parameters()).hex())
"""


@pytest.mark.long
def test_a_plain_loop_under_guard_goes_on_from_its_last_step(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(LOOP)
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "HOLDFAST_SNAPSHOT_SHARE": "1e9"}
    alone = subprocess.run([sys.executable, "loop.py"], cwd=tmp_path, capture_output=True, text=True, env=environment, check=True)
    watched = holdfast("run", "--run", "run", "--", sys.executable, "loop.py", "die", cwd=tmp_path, env=environment)
    assert watched.returncode == 0, watched.stderr
    assert watched.stdout.splitlines()[-1] == alone.stdout.splitlines()[-1], "the same bits"
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert (summary["attempts"], summary["steps"], summary["steps_computed_twice"]) == (2, 12, 0)
    assert "step 5: the gradients are not finite; dropped" in alone.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    ("faults", "more", "attempts"),
    [
        ("kill:9:1", (), 2),
        ("kill:9:1,kill:12:2", ("--obey", "False"), 3),
        ("term:4:1", (), 2),
        ("exit0:6:1", (), 2),
        ("hang:7:1", (), 2),
        ("kill:3:1,hang:5:2,exit0:11:3,term:13:4", (), 5),
    ],
)
def test_a_real_script_without_a_line_of_ours_ends_with_the_same_bits(
    tmp_path: Path, faults: str, more: tuple[str, ...], attempts: int
) -> None:
    told = {"output_dir": "out", "max_steps": 14, "per_device_train_batch_size": 4, "learning_rate": 0.01, "save_steps": 5, "seed": 3}
    options = [word for name, value in told.items() for word in (f"--{name}", str(value))]
    words = [sys.executable, str(SCRIPT), *options, "--report_to", "none", "--use_cpu", "True", *more]
    alone = subprocess.run([*words, "--output_dir", "alone"], cwd=tmp_path, capture_output=True, text=True, check=True)
    (tmp_path / "calls.txt").unlink()
    environment = os.environ | {"HOLDFAST_SNAPSHOT_SHARE": "1e9", "PYTHONPATH": str(ROOT / "src")}
    held = ["run", "--run", "run", "--callback", "--hang-s", "12", "--", *words, "--faults", faults]
    watched = holdfast(*held, cwd=tmp_path, env=environment)
    assert watched.returncode == 0, watched.stderr
    weights = [line for line in watched.stdout.splitlines() if line.startswith("weights")]
    assert weights == [line for line in alone.stdout.splitlines() if line.startswith("weights")]
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert (summary["attempts"], summary["steps"], summary["steps_computed_twice"]) == (attempts, 14, 0)


def test_a_state_that_a_full_disk_takes_no_checkpoint_of_stays_in_memory_until_there_is_room(
    tmp_path: Path, train: Callable[..., Any], small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, out = RunFolder(tmp_path / "run"), small_disk / "out"
    monkeypatch.setattr("holdfast.supervision.command.states.snapshot_of", lambda run: tmp_path / "snapshot")
    train("raise:8:*", output_dir=str(out))
    told: list[str] = []
    states = States(run, Command(("true",), str(tmp_path), checkpoints=str(out), callback=True), None, told.append)
    filler = fill(small_disk)
    states.keep_what_stayed()
    assert (tmp_path / "snapshot").exists() and told[-1].endswith("is full; it stays in memory")
    assert not list(out.glob(".holdfast-*")), "nothing of it is left where there is no room"
    filler.unlink()
    states.keep_what_stayed()
    assert (out / "checkpoint-7").is_dir() and not (tmp_path / "snapshot").exists()
    state = states.to_go_on_from()
    assert state is not None and state.step == 7
    states.keep_what_stayed()
    assert told[-1] == "checkpoint-7 was made of the newest whole state in memory"


def test_the_last_of_many_short_steps_is_known_though_the_pulse_is_published_seldomer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ATTEMPT, str(tmp_path))
    account = Account()
    account.pulse(at_once=True, phase="training", step=0, steps=9)
    account._cost = 1e9  # publishing is dear
    for step in range(1, 6):
        account.pulse(step=step, steps=9)
    assert (read_json(tmp_path / "pulse.json") or {})["step"] == 0
    seen = Signs(Command(("true",), str(tmp_path), callback=True), tmp_path, 0.0).last()
    assert (seen.step, seen.source) == (5, "callback")


@pytest.mark.long
@pytest.mark.parametrize("faults", ["kill:6:1,kill:6:2", "kill1:6:1", "kill1:3:1,kill:8:2"], ids=["both", "one", "one, then both"])
def test_two_processes_that_die_under_torchrun_end_with_the_same_bits_and_each_step_that_was_repeated_is_counted(
    faults: str, tmp_path: Path
) -> None:
    told = {"output_dir": "out", "max_steps": 8, "per_device_train_batch_size": 2, "learning_rate": 0.01, "save_steps": 3, "seed": 3}
    options = [word for name, value in told.items() for word in (f"--{name}", str(value))]
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(SCRIPT), *options]
    words += ["--report_to", "none", "--use_cpu", "True"]
    (tmp_path / "alone").mkdir()
    alone = subprocess.run(words, cwd=tmp_path / "alone", capture_output=True, text=True, check=True)
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    held = ["run", "--run", "run", "--callback", "--", *words, "--faults", faults]
    watched = holdfast(*held, cwd=tmp_path, env=environment)
    assert watched.returncode == 0, watched.stderr
    assert watched.stdout.split()[-1] == alone.stdout.split()[-1], "the same bits"
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    twice = {"kill:6:1,kill:6:2": 2 + 2, "kill1:6:1": 2, "kill1:3:1,kill:8:2": 2 + 1}[faults]
    assert (summary["steps"], summary["steps_computed_twice"], summary["steps_computed_twice_exact"]) == (8, twice, True)
    assert summary["doubt"] is None and all(
        "went on from out/checkpoint-" in one["evidence"] for one in summary["incidents"] if one["step"] > 3
    )
