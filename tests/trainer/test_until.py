"""Goals and budgets: a run ends when one is reached, with the bits of a run that was not killed; hours fit the schedule."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

from conftest import holdfast, lines
from holdfast.base.files import append_line, write_json
from holdfast.config.train import Until
from holdfast.machine import clock
from holdfast.run.sampling.step_table import learning_rate
from holdfast.run.timeline import Entry, Settings
from holdfast.trainer.loop import goals
from holdfast.trainer.loop.goals import Goals, seconds_before
from support.world import new_run

LONG = {"steps": None, "epochs": 3, "effective_batch": 8, "lr": 1e-2}
KILLS = [{"when": {"step": step, "attempt": at, "phase": "backward"}, "effect": "kill"} for at, step in enumerate((2, 4, 6), 1)]


def trained(config: Path, folder: Path, faults: list[dict[str, Any]]) -> dict[str, Any]:
    file = folder.with_suffix(".faults.yaml")
    file.write_text(yaml.safe_dump({"faults": faults}))
    done = holdfast("train", config, "--run", folder, "--json", *(["--faults", file] if faults else []))
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize(("goal", "value", "adapter"), [("loss", 5.9, "lora"), ("tokens", 2000, "lora"), ("tokens", 2000, "adalora")])
def test_a_killed_run_reaches_its_goal_at_the_same_step_with_the_same_bits(
    config_of: Callable[..., Path], tmp_path: Path, goal: str, value: float, adapter: str
) -> None:
    """AdaLoRA's ranks fell by the length that the run was planned with, and in the next attempt by the one it was fitted to."""
    config = config_of(train=LONG | {"until": {goal: value}}, adapter={"type": adapter})
    plain = trained(config, tmp_path / "plain", [])
    killed = trained(config, tmp_path / "killed", KILLS)
    assert plain["until"]["reached"] == killed["until"]["reached"] == goal
    assert 1 < plain["steps"] < 45 and plain["steps"] == killed["steps"]
    assert killed["attempts"] > 1
    assert plain["artifact_sha256"] == killed["artifact_sha256"]
    rows = lines(tmp_path / "killed/steps.jsonl")
    if goal == "loss":
        assert rows[-1]["loss"] <= value
    else:
        assert sum(row["tokens"] for row in rows) >= value > sum(row["tokens"] for row in rows[:-1])
        assert rows[-1]["lr"] < 0.1 * rows[0]["lr"], "the schedule ends where the run does"


def test_a_run_that_has_reached_its_goal_is_extended_by_another_goal_alone(config_of: Callable[..., Path], tmp_path: Path) -> None:
    config, run = config_of(train=LONG | {"steps": 40, "epochs": None, "until": {"loss": 5.9}}), tmp_path / "run"
    ended = trained(config, run, [])
    for same in ("train.until.loss=5.9", "train.until.loss=5.95"):
        refused = holdfast("train", config, same, "train.steps=60", "--run", run, "--extend")
        assert refused.returncode == 2 and "the run has reached its goal: train.until.loss 5.9" in refused.stderr, refused.stderr
        assert "lower train.until.loss" in refused.stderr
    assert len(lines(run / "steps.jsonl")) == ended["steps"], "nothing was trained"
    done = holdfast("train", config, "train.until.loss=0.01", "train.steps=41", "--run", run, "--extend", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"] == 41 and json.loads(done.stdout)["until"]["reached"] is None


@pytest.mark.parametrize("steps", [None, 40])
def test_a_run_extended_by_more_tokens_has_its_schedule_end_with_them(
    config_of: Callable[..., Path], tmp_path: Path, steps: int | None
) -> None:
    """Where tokens alone said the length it was refused; beside steps the rate was still high when the tokens were reached."""
    config, run = config_of(train=LONG | {"steps": steps, "epochs": None, "until": {"tokens": 500}}), tmp_path / "run"
    before = trained(config, run, [])["steps"]
    done = holdfast("train", config, "train.until.tokens=1250", "--run", run, "--extend", "--json")
    assert done.returncode == 0, done.stderr
    answer, rows = json.loads(done.stdout), lines(run / "steps.jsonl")
    assert answer["until"]["reached"] == "tokens" and before < answer["steps"] < 30
    assert sum(row["tokens"] for row in rows) >= 1250 > sum(row["tokens"] for row in rows[:-1])
    end = len(rows)
    assert [row["lr"] for row in rows[before:]] == [learning_rate(step, end, 1e-2, "cosine", 0.03) for step in range(before + 1, end + 1)]


def test_a_run_of_hours_is_extended_to_the_end_that_its_config_names(config_of: Callable[..., Path], tmp_path: Path) -> None:
    """The length it began with was held to be its longest: it ended three steps behind there."""
    config, run = config_of(train={"steps": 2, "until": {"hours": 100}}), tmp_path / "run"
    assert trained(config, run, [])["steps"] == 2
    done = holdfast("train", config, "train.steps=8", "--run", run, "--extend", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"] == 8


def test_a_run_without_a_goal_in_reach_ends_at_its_last_step(config_of: Callable[..., Path], tmp_path: Path) -> None:
    answer = trained(config_of(train={"steps": 4, "until": {"loss": 0.01, "hours": 5}}), tmp_path / "run", [])
    assert answer["steps"] == 4 and answer["until"]["reached"] is None


def test_a_goal_that_is_none_is_refused(config_of: Callable[..., Path]) -> None:
    done = holdfast("train", config_of(train={"until": {}}))
    assert done.returncode == 2 and "give loss, hours or tokens" in done.stderr


class _Bench:
    """A run whose steps take as long as is said, planned with 1000 of them. Each row has 10 tokens."""

    def __init__(self, tmp_path: Path, steps: int | None, planned: int = 1000) -> None:
        self.entries = [Entry(1, {"steps": planned, "samples": 8 * planned, "micro_batch_tokens": 1, "threads": 1})]
        train = SimpleNamespace(steps=steps, epochs=None)
        self.rank = SimpleNamespace(first=True, exchange=lambda facts: [facts])
        table = SimpleNamespace(batch=8, samples=lambda step, end, behind: np.arange(8))
        self.task = SimpleNamespace(data=SimpleNamespace(table=table, sizes=np.full(8, 10)))
        run = SimpleNamespace(steps=lambda: iter(()), events=lambda: iter(()), attempts=list)
        self.job = SimpleNamespace(run=run, number=1, orders={"started": 10.0}, settings=self.settings, amend=self.entries.append)
        self.job.config, self.job.plan, self.job.event = SimpleNamespace(train=train), SimpleNamespace(steps=planned), lambda *_, **__: None
        self.job.timeline = self.entries

    def settings(self, step: int) -> Settings:
        merged: dict[str, Any] = {}
        for entry in self.entries:
            merged |= entry.settings if entry.from_step <= step else {}
        return Settings.model_validate(merged)

    def steps_of(self, seconds: float, pauses: dict[int, float] | None = None, **goals_wanted: Any) -> int:
        now = [10.0]
        goals = Goals(self, Until(**goals_wanted), 0, lambda: now[0])  # type: ignore[arg-type]
        step = 0
        while step < self.settings(step + 1).steps:
            step += 1
            now[0] += seconds + (pauses or {}).get(step, 0.0)
            goals.look({"step": step, "loss": 1.0, "tokens": 80, "time": now[0], "attempt": 1})
        return step


@pytest.mark.parametrize(("named", "seconds", "ends"), [(None, 2.0, 1800), (None, 30.0, 120), (1000, 2.0, 1000), (1000, 30.0, 120)])
def test_a_schedule_is_fitted_to_hours_and_never_beyond_a_length_that_is_named(
    tmp_path: Path, named: int | None, seconds: float, ends: int
) -> None:
    bench = _Bench(tmp_path, named)
    steps = bench.steps_of(hours=1.0, seconds=seconds)
    assert ends * 0.9 <= steps <= ends
    assert len(bench.entries) < 30, "not at every step"


@pytest.mark.parametrize(
    ("named", "seconds", "pauses", "ends", "goal"),
    [
        (None, 7.0, {}, 514, "hours"),
        (1000, 7.0, {}, 514, "hours"),
        (1000, 10.0, {355: 45.0}, 355, "hours"),
        (100, 7.0, {}, 100, None),
        (514, 7.0, {}, 514, None),
    ],
    ids=["hours alone", "fewer steps than are named", "an evaluation takes the last ones", "the steps that are named", "about as many"],
)
def test_a_run_that_is_as_long_as_its_hours_has_reached_them(
    tmp_path: Path, named: int | None, seconds: float, pauses: dict[int, float], ends: int, goal: str | None
) -> None:
    """Its schedule ended seconds before its hours did, and it was told that no goal was reached."""
    bench = _Bench(tmp_path, named, planned=named or 1000)
    told: list[dict[str, Any]] = []
    bench.job.event = lambda kind, **facts: told.append({"kind": kind} | facts)
    assert bench.steps_of(seconds, pauses, hours=1.0) == ends
    assert [(one["goal"], one["step"]) for one in told if one["kind"] == "goal_reached"] == ([(goal, ends)] if goal else [])
    assert not goal or told[-1]["reason"].startswith("train.until.hours 1: 0.99")


def test_a_run_of_hours_alone_whose_rows_make_two_steps_goes_on_for_hours(tmp_path: Path) -> None:
    """It ended with them: of fewer than three steps nothing was fitted."""
    assert 1700 <= _Bench(tmp_path, None, planned=2).steps_of(2.0, hours=1.0) <= 1800


@pytest.mark.parametrize("planned", [50, 60, 1000])
def test_a_schedule_made_for_tokens_is_never_fitted_to_hours_beyond_them(tmp_path: Path, planned: int) -> None:
    """The rate was still at its peak when the tokens were reached. planned: one epoch of them, too."""
    bench = _Bench(tmp_path, None, planned)
    assert bench.steps_of(2.0, hours=1.0, tokens=80 * 60) == 60
    assert {bench.settings(step).steps for step in range(1, 61)} == {60}


def test_the_time_until_an_end_was_found_is_no_time_trained(tmp_path: Path) -> None:
    """A machine that was off for a night had trained all night: a run of hours ended with its next step."""
    run = new_run(tmp_path / "run")
    append_line(run.steps_file, {"step": 1, "attempt": 1, "time": 160.0})
    ends: list[dict[str, Any]] = [
        {"ending": {"kind": "vanished", "seconds": None}, "died": 36_000.0},  # as its wreck of before has it
        {"ending": {"kind": "never_started", "seconds": None}, "died": 72_000.0},
        {"ending": {"kind": "killed", "seconds": 7.0}, "died": 72_107.0},
    ]
    for number, (end, started) in enumerate(zip(ends, (100.0, 36_000.0, 72_100.0), strict=True), 1):
        folder = run.attempt(number)
        folder.mkdir(parents=True)
        write_json(folder / "launch.json", {"started": started})
        write_json(folder / "wreck.json", end | {"attempt": number})
    assert seconds_before(run, 4) == 60.0 + 7.0


def test_a_calendar_that_is_set_by_ten_years_is_no_time_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = _Bench(tmp_path, 1000)
    with clock.counting():
        bench.job.orders = {"started": clock.now()}
        goals = Goals(bench, Until(hours=5), 0)  # type: ignore[arg-type]
        calendar = time.time
        monkeypatch.setattr(time, "time", lambda: calendar() + 10 * 365 * 86400)
        assert goals._decide_change({"step": 1, "loss": 1.0, "tokens": 10}) == {}


def test_what_the_machine_slept_is_no_time_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A laptop that was closed for a night ended a run of five hours with its next step, or fitted its schedule to steps of hours."""
    bench, slept, ran = _Bench(tmp_path, None), [50.0], [10.0]
    monkeypatch.setattr(goals, "_slept_s", lambda: slept[0])
    monkeypatch.setattr(clock, "now", lambda: ran[0] + slept[0] - 50.0)
    five = Goals(bench, Until(hours=5), 0)  # type: ignore[arg-type]
    for step in range(1, 31):
        ran[0] += 60
        slept[0] += 8 * 3600 if step == 25 else 0
        five.look({"step": step, "loss": 1.0, "tokens": 10})
        assert bench.settings(step + 1).steps > step
    assert 270 <= bench.settings(31).steps <= 330


def test_what_the_machine_slept_in_an_attempt_that_was_killed_is_no_time_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attempt that went on after it took the night for hours of training, and ended the run with its next step."""
    run, bench, slept, ran = new_run(tmp_path / "run"), _Bench(tmp_path, None), [50.0], [10.0]
    monkeypatch.setattr(goals, "_slept_s", lambda: slept[0])
    bench.job.event = lambda kind, **facts: run.event(kind, attempt=1, **facts)
    killed = Goals(bench, Until(hours=5), 0, lambda: ran[0])  # type: ignore[arg-type]
    for step, more in ((1, 0.0), (2, 8 * 3600.0), (3, 0.4), (4, 3600.0)):
        slept[0] += more
        ran[0] += 60
        killed.look({"step": step, "loss": 1.0, "tokens": 10})
        append_line(run.steps_file, {"step": step, "attempt": 1, "time": 60.0 * step + slept[0]})
    run.attempt(1).mkdir(parents=True)
    write_json(run.attempt(1) / "launch.json", {"started": 50.0})
    assert seconds_before(run, 2) == pytest.approx(240.0, abs=0.01)
    assert [event["step"] for event in run.events() if event["event"] == "slept"] == [2, 4]


def test_of_steps_whose_rows_are_lost_tokens_count_and_no_loss_before_them(tmp_path: Path) -> None:
    bench = _Bench(tmp_path, 1000)
    bench.job.run.steps = lambda: iter(
        [{"step": step, "loss": float(step), "tokens": 80, "time": 0.0, "attempt": 1} for step in (1, 2, 5, 6)]
    )
    bench.task.data = SimpleNamespace(
        table=SimpleNamespace(batch=8, samples=lambda step, _, behind: np.arange(8 * (step - 1), 8 * step) - behind), sizes=np.arange(80)
    )
    bench.entries.append(Entry(4, {"behind": 3}, "extended"))
    goals = Goals(bench, Until(loss=1.0), 6, lambda: 0.0)  # type: ignore[arg-type]
    assert goals.tokens == 4 * 80 + sum(range(16, 24)) + sum(range(21, 29))
    assert list(goals.losses) == [5.0, 6.0]
