"""A command that works is never silent: every ten seconds it tells on standard error what it is at."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.base.errors import BLOCKED, Stop
from holdfast.base.wait import doing, what_is_done
from holdfast.book import cards_of
from holdfast.cli.commands import init, train
from holdfast.cli.main import main
from holdfast.config.config import Config
from holdfast.experiments.check.bench import Bench, Item
from holdfast.experiments.check.everything import ITEMS, items
from holdfast.experiments.tune.climb import climb
from holdfast.planning import tracing
from holdfast.terminal import working as told
from holdfast.terminal.working import working


def alarm() -> None:
    """Let the ten seconds be over."""
    signal.raise_signal(signal.SIGALRM)


def test_what_is_done_is_told_on_standard_error_alone(capfd: pytest.CaptureFixture[str]) -> None:
    with working("planning the run", machine_reads=False):
        alarm()
        with doing("packing (rung 2 of 11)"), doing("a course of 24 steps"):
            alarm()
        alarm()
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    out, err = capfd.readouterr()
    assert out == ""
    assert err == "  0 s: planning the run\n  0 s: packing (rung 2 of 11): a course of 24 steps\n  0 s: planning the run\n"


@pytest.mark.parametrize("terminal", [False, True])
def test_a_machine_that_reads_the_outputs_hears_nothing_but_on_a_terminal(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGALRM)
    monkeypatch.setattr(os, "isatty", lambda _: terminal)
    with working("planning the run", machine_reads=True):
        assert (signal.getsignal(signal.SIGALRM) is not before) == terminal
    assert signal.getsignal(signal.SIGALRM) is before


def test_a_line_is_no_wider_than_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "isatty", lambda _: True)
    monkeypatch.setenv("COLUMNS", "40")
    with doing("measuring memory on empty tensors, step 10: 1 row of 512 tokens"):
        assert told.line(50.0, "") == "  50 s: measuring memory on empty tens…"


def test_an_alarm_of_somebody_else_is_left_alone() -> None:
    signal.setitimer(signal.ITIMER_REAL, 1000.0)
    try:
        with working("planning the run", machine_reads=False):
            assert signal.getitimer(signal.ITIMER_REAL)[1] == 0.0
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


@pytest.mark.parametrize("verb", ["plan", "check", "tune", "doctor"])
def test_a_command_that_takes_long_tells_what_it_is_at(
    verb: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    command = __import__(f"holdfast.cli.commands.{verb}", fromlist=["run"])

    def work(_: Any) -> tuple[int, dict[str, Any]]:
        alarm()
        return 0, {}

    monkeypatch.setattr(command, "run", work)
    assert main([verb, "my-run.yaml"]) == 0
    assert capfd.readouterr().err == f"  0 s: {command.WORK}\n"


class _Lab:
    """A laboratory whose children fail; keeps what was noted when one was asked."""

    def __init__(self) -> None:
        self.noted: list[str] = []

    def ask(self, kind: str, **_: Any) -> dict[str, Any]:
        self.noted.append(what_is_done())
        return {"start": {"ending": "finished", "start": {}, "trainable": 1, "steps": 3}}.get(kind, {"ending": "error", "log": []})

    def let_go(self) -> None:
        """Hold no child."""


def _bench(lab: _Lab, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr("holdfast.experiments.check.start.started", lambda _: "")
    config = Config.model_validate({"model": "tiny", "data": {"files": ["rows.jsonl"]}})
    plan: Any = None
    laboratory: Any = lab
    return Bench(laboratory, config, plan, "my-run.yaml", {})


def test_check_tells_which_item_it_is_at(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = _Lab()

    def item(name: str) -> Any:
        return lambda bench: bench.lab.ask(name) and Item(name, "passed")

    for name in list(ITEMS)[1:]:
        monkeypatch.setitem(ITEMS, name, item(name))
    assert [found.id for found in items(_bench(lab, monkeypatch), list(ITEMS))] == list(ITEMS)
    assert [line.partition(": ")[0] for line in lab.noted] == [f"{name} ({number} of 7)" for number, name in enumerate(ITEMS, 1)]
    assert what_is_done() == ""


def test_tune_tells_which_rung_and_what_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = _Lab()
    climb(_bench(lab, monkeypatch), {"micro_batch_tokens": 64}, cards_of("rungs").values(), "cpu", lambda _: None)
    assert lab.noted == ["reference: 3 steps"]


def test_plan_tells_how_many_steps_it_has_computed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    noted: list[str] = []

    def answer(_: object, case: dict[str, Any]) -> dict[str, Any]:
        noted.append(what_is_done())
        return {"shapes": {}} if "shapes" in case else {}

    monkeypatch.setattr(tracing.Tracer, "_known", answer)
    monkeypatch.setattr(tracing.Demand, "model_validate", lambda _: None)
    config = Config.model_validate({"model": "tiny", "data": {"files": ["rows.jsonl"]}})
    model: Any = type("Model", (), {"folder": tmp_path, "config": {}, "stored": None})
    settings: Any = type("Settings", (), {"as_json": lambda self: {}})()
    child = tracing.Tracer(None)
    child.shapes(config, model)
    for rows in ([96] * 8, [512]):
        child.demand(config, model, settings, rows, 8, {})
    steps = [
        "measuring memory on empty tensors, step 1: 8 rows of 96 tokens",
        "measuring memory on empty tensors, step 2: 1 row of 512 tokens",
    ]
    assert noted == ["reading the model's shapes", *steps]


def test_train_tells_what_its_preparation_is_at(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], config_of: Callable[..., Path], tmp_path: Path
) -> None:
    def prepare(*_: object) -> None:
        alarm()
        with doing("reading and checking the rows of rows.jsonl") as note:
            note[0] += ", 1,024 so far"
            alarm()
        raise Stop(BLOCKED, "enough")

    monkeypatch.setattr(train, "open_run", prepare)
    monkeypatch.setattr(train, "StopSignals", lambda: SimpleNamespace(outlive_terminal=lambda _: None))
    assert main(["train", str(config_of("c")), "--run", str(tmp_path / "run")]) == BLOCKED
    told = ["  0 s: preparing the run", "  0 s: reading and checking the rows of rows.jsonl, 1,024 so far"]
    assert [line for line in capfd.readouterr().err.splitlines() if line.startswith("  0 s")] == told


def test_a_pipe_gets_each_line_when_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").touch()
    seen = []

    def look(*_: object) -> None:
        seen.append((tmp_path / "said").read_text(encoding="utf-8"))
        raise Stop(BLOCKED, "enough")

    monkeypatch.setattr(init, "from_answers", look)
    with (tmp_path / "said").open("w", encoding="utf-8") as said:
        monkeypatch.setattr(sys, "stdout", said)
        assert main(["init", "--model", "tiny", "--data", "rows.jsonl", "--out", "new.yaml"]) == BLOCKED
    assert seen == ["looking at the rows of rows.jsonl\n"]
