"""Machine facts: what torch is, is asked once per machine and asked again when anything that matters changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.world import machine


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """Counts how often torch is really asked."""
    calls: list[int] = []

    def ask() -> machine.Json:
        calls.append(1)
        return {"torch": {"version": "2.13.0"}, "gpus": []} if len(calls) > 1 else {"torch": None, "gpus": [], "torch_error": "boom"}

    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path))
    monkeypatch.setattr(machine, "_ask_torch_now", ask)
    return calls


def test_a_failed_answer_is_not_kept_and_a_good_one_is(asked: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.read_machine()["torch_error"] == "boom"
    assert machine.read_machine()["torch"]["version"] == "2.13.0"
    assert machine.read_machine()["torch"]["version"] == "2.13.0"
    assert len(asked) == 2
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "1")
    machine.read_machine()
    assert len(asked) == 3


def test_the_real_torch_answers_from_a_child(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import torch

    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path))
    facts = machine.read_machine(tmp_path)
    assert facts["torch"]["version"] == torch.__version__
    assert facts["memory_bytes"] > 1 << 28
    assert facts["disk_free_bytes"] > 0
    assert facts["cpu"]["threads"] == machine.usable_threads() >= 1
