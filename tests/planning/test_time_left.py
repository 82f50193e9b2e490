"""How long a run still takes: judged by the process that trains, with the evaluations on the way, and never by a night between two."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from rich.console import Console

from holdfast.config.config import Config
from holdfast.planning.time_left import HeldOutWork, judged, time_left
from holdfast.run.folder import RunFolder
from holdfast.run.plan import RunPlan, Seconds, write_plan
from holdfast.terminal.run_view import Terminal
from support.plans import a_plan

DAY = 86_400.0


def _went(run: RunFolder, steps: range, begin: float, step_s: float = 1.0, attempt: int = 1, **evaluated: float) -> float:
    """Append rows of steps to the journal, and of the evaluations after each `every`, of `took` seconds; when the last one was over."""
    now, every = begin, evaluated.get("every")
    for step in steps:
        now += step_s
        facts: dict[str, Any] = {"step": step, "time": now, "attempt": attempt, "samples": [1, 2, 3, 4]}
        facts |= {"loss": 3.9, "grad_norm": 3.6, "lr": 2e-4, "tokens": 9, "seconds": step_s, "peak_bytes": 9}
        with run.steps_file.open("a") as file:
            file.write(json.dumps(facts) + "\n")
        if every and step % every == 0:
            now += evaluated["took"]
            with run.evaluations_file.open("a") as file:
                file.write(json.dumps({"step": step, "loss": 1.0, "seconds": evaluated["took"]}) + "\n")
    return now


@pytest.mark.parametrize(
    ("steps", "evaluations", "low", "likely", "high"),
    [
        (20, HeldOutWork(), 80, 80, 80),
        (
            20,
            HeldOutWork(50, 20),
            80 + 2 * 1.25,
            80 + 2 * 2.5,
            80 + 2 * 5,
        ),  # none was yet: 20 rows, forward alone, by steps of 4 rows
        (24, HeldOutWork(10, 20), 76 + 8 * 30, 76 + 8 * 30, 76 + 8 * 30),  # two were: as long as those
        (20, HeldOutWork(10, 20), 80 + 8 * 30, 80 + 8 * 30, 80 + 8 * 30),
        (97, HeldOutWork(10, 20), 3 + 30, 3 + 30, 3 + 30),
        (100, HeldOutWork(10, 20), 0, 0, 0),
    ],
)
def test_evaluations_to_come_are_counted_and_those_that_were_are_no_pace(
    steps: int, evaluations: HeldOutWork, low: float, likely: float, high: float, tmp_path: Path
) -> None:
    run = RunFolder(tmp_path)
    _went(run, range(1, steps + 1), 1000.0, every=float(evaluations.every or 0), took=30.0)
    if evaluations.every == 50:
        run.evaluations_file.unlink(missing_ok=True)
    left = time_left(run, steps, 100, evaluations)
    assert left and (left.low, left.likely, left.high) == pytest.approx((low, likely, high), rel=1e-6)


def test_an_evaluation_that_is_under_way_is_still_to_come(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    _went(run, range(1, 20), 1000.0, every=10.0, took=30.0)
    _went(run, range(20, 21), 1049.0)
    left = time_left(run, 20, 30, HeldOutWork(10, 4))
    assert left and left.likely == pytest.approx(10 + 2 * 30)


def test_a_run_says_itself_what_it_evaluates(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert judged(run) == HeldOutWork()
    run.config_file.write_text(yaml.safe_dump({"model": "m", "data": {"files": ["f"]}, "evaluate": {"every": 7, "rows": 12}}))
    for held_out, found in ((0, HeldOutWork(None, 0)), (9, HeldOutWork(7, 9)), (40, HeldOutWork(7, 12))):
        whole = {"steps": 20, "samples": 20, "rows": {"train": 20, "held_out": held_out, "per_epoch": 20}, "data_sha256": ""}
        write_plan(run.plan_file, RunPlan(**dict(a_plan()), **whole))
        assert judged(run) == found


def test_a_night_between_two_processes_is_no_pace_for_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The terminal of a run that goes on the next day sees yesterday's last row first."""
    for name in ("_LOOK_EVERY_S", "_PLAIN_LINE_EVERY_S"):
        monkeypatch.setattr(f"holdfast.terminal.run_view.{name}", 0.0)
    monkeypatch.setattr("holdfast.terminal.run_view.newest_settings", lambda _: SimpleNamespace(steps=100))
    run, screen = RunFolder(tmp_path), io.StringIO()
    yesterday = _went(run, range(1, 41), 1000.0)
    terminal = Terminal(to_stderr=True, quiet=False)
    terminal.console = Console(file=screen, soft_wrap=True)
    terminal.begin(run, Config.model_validate({"model": "tiny", "data": {"files": ["rows.jsonl"]}}))
    now, alive = yesterday + DAY, SimpleNamespace(unwritten=lambda: 0)
    terminal.tick(alive)  # type: ignore[arg-type]
    for step in range(41, 61):
        now = _went(run, range(step, step + 1), now, attempt=2)
        terminal.tick(alive)  # type: ignore[arg-type]
    last = screen.getvalue().splitlines()[-1]
    assert last.startswith("step 60/100") and last.endswith("40 s left")
    assert time_left(run, 60, 100, HeldOutWork()) == Seconds(low=40.0, likely=40.0, high=40.0)
