"""The item `overfit` ends in time, does not believe an estimate that the model contradicts, and says unknown where it had too few steps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from holdfast.base.files import Json
from holdfast.config.config import Config
from holdfast.experiments.check import overfit as item
from holdfast.experiments.check.bench import Bench
from holdfast.experiments.check.everything import _DOES, _MINUTES, ITEMS, announced
from holdfast.trainer.jobs.laboratory.rows import _best_said


class Machine:
    """A laboratory in which a step of any course takes so many seconds, and the loss falls by `fall` in each; rates above 0.01 diverge."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float, fall: float) -> None:
        self.now, self.seconds, self.fall = 0.0, seconds, fall
        monkeypatch.setattr(item, "time", SimpleNamespace(monotonic=lambda: self.now))

    def ask(self, kind: str, **request: Any) -> Json:
        rows: list[Json] = []
        if request["rate"] > 0.01:
            return {"ending": "finished", "rows": [{"step": 1, "loss": None, "grad_norm": None}], "finite": False}
        began = self.now
        while len(rows) < request["steps"]:
            self.now += self.seconds
            rows.append({"step": len(rows) + 1, "loss": 5.0 - self.fall * len(rows), "grad_norm": 1.0, "seconds": self.seconds})
            late = self.now - began > request["most_seconds"] and len(rows) >= request["least_steps"]
            if rows[-1]["loss"] <= request["goal"] or late:
                break
        return {"ending": "finished", "rows": rows, "finite": True, "moved": 1.0, "size": 10}


def bench_of(machine: Machine, **rows: Any) -> Bench:
    config = Config.model_validate({"model": "tiny", "data": {"files": ["rows.jsonl"]}, "train": {"epsilon": 1e-3}})
    facts: Json = {"rows": {"ten": 10, "vocabulary": 49152, "least_loss": 0.0, **rows}}
    return Bench(machine, config, None, "a.yaml", {}, facts=facts)  # type: ignore[arg-type]


@pytest.mark.parametrize("seconds", [0.74, 1.5, 6.0, 20.0, 100.0])
def test_a_slow_machine_gets_an_unknown_in_minutes_and_no_accusation(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, seconds, fall=0.001)
    found = item.overfit(bench_of(machine))
    whole = "no single cause was found" in found.why  # there was time for each course, and it moved the loss a little
    assert found.verdict == "unknown" and (whole or "no answer within" in found.why) and "a.yaml" in found.next
    assert "train.lr" not in found.next, "time was short; nothing speaks against the rate"
    assert machine.now <= 241 + 3 * seconds


@pytest.mark.parametrize(
    ("seconds", "fall", "told"),
    [
        (0.1, 0.0, "at 0.05 not finite, too; at 0.005 it is finite, and the loss hardly falls (5.000 to 5.000); at 0.0005 it is finite"),
        (100.0, 0.0, "at 0.005 it is finite, and the loss hardly falls (5.000 to 5.000); there was no time to try 0.0005"),
    ],
)
def test_what_is_not_finite_at_lower_rates_is_told_as_it_was_seen(
    seconds: float, fall: float, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = bench_of(Machine(monkeypatch, seconds, fall))
    bench.config = Config.model_validate({"model": "tiny", "data": {"files": ["rows.jsonl"]}, "train": {"lr": 0.5}})
    ask = bench.lab.ask
    late = [{"step": 1, "loss": 5.0, "grad_norm": 1.0}, {"step": 2, "loss": None, "grad_norm": None}]
    monkeypatch.setattr(bench.lab, "ask", lambda *a, **k: ask(*a, **k) | ({"rows": late} if k["rate"] == 0.5 else {}))
    found = item.overfit(bench)
    assert (found.verdict, found.numbers["cause"]) == ("failed", "not_finite") and told in found.why


def test_how_long_all_items_may_take_is_said_before_the_first() -> None:
    told = announced([*ITEMS])
    assert told.startswith(f"{len(ITEMS)} items are tried: ") and all(name in told for name in ITEMS)
    assert "after 10 minutes in all first, overfit, precision, speed end once their step is done" in told
    assert told.endswith("start, order, resume: a few steps each, however long one takes on this machine")
    assert announced(["overfit"]) == "1 item is tried: after 4 minutes overfit ends once its step is done"
    assert _MINUTES.keys() == {name for name, does in _DOES.items() if "minute" in does}


def test_what_does_not_move_the_loss_in_whole_courses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = item.overfit(bench_of(Machine(monkeypatch, 0.1, fall=0.0)))
    assert (found.verdict, found.numbers.get("cause")) == ("failed", "no_effect")


def test_an_estimate_that_the_first_step_contradicts_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    found = item.overfit(bench_of(Machine(monkeypatch, 0.1, fall=0.1), expressible_loss=6.8))
    assert found.verdict == "passed" and found.numbers["steps"] > 1 and found.numbers["expressible_loss"] is None


def test_what_an_output_layer_can_say_is_looked_for() -> None:
    """A token's own direction speaks for its longer neighbours more, as in real ones; what tells it from them can be said all the same."""
    torch.manual_seed(0)
    known = torch.randn(2000, 64)
    known[16:32] = 2 * known[:16] + torch.randn(16, 64)
    said = _best_said(known, torch.arange(16), torch.full((16,), 1 / 16), norm=12.0, enough=0.0)
    assert said < 1.0
    faint = _best_said(known * 1e-3, torch.arange(16), torch.full((16,), 1 / 16), norm=12.0, enough=0.0)
    assert faint > 7.0, "a layer that says next to nothing is still told"
