"""Run folders of version 0.1.0 are read by every verb that reads, and those that were left unfinished end with the same bits."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from conftest import holdfast, lines
from support.old_runs import EXPECTED, check_bits, command_of, near, same_machine, settle

KINDS = ("text", "preferences", "full", "four-bit", "ranks", "tabular", "command")
UNFINISHED = ("text", "preferences", "tabular", "ranks", "command")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All finished runs, for readers that change nothing."""
    place = tmp_path_factory.mktemp("old")
    settle(place, *KINDS)
    return place


def answer(place: Path, *arguments: object, code: int = 0) -> dict[str, Any]:
    """What `holdfast ARGUMENTS --json` says."""
    own = {"HOLDFAST_MODELS": str(place / "models.jsonl"), "HOLDFAST_CACHE": str(place / "cache")}
    arguments = arguments if "--json" in arguments else (*arguments, "--json")
    done = holdfast(*arguments, cwd=place / "inputs", env=own)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def losses_of(run: Path) -> list[float] | None:
    return [row["loss"] for row in lines(run / "steps.jsonl")] if (run / "steps.jsonl").exists() else None


def made_by_command(place: Path) -> str:
    return hashlib.sha256((place / "inputs/out/checkpoint-8/adapter_model.safetensors").read_bytes()).hexdigest()


def needs_bitsandbytes(kind: str) -> None:
    if kind == "four-bit":
        pytest.importorskip("bitsandbytes")


@pytest.mark.parametrize("kind", KINDS)
def test_a_finished_run_is_shown_and_understood(place: Path, tmp_path: Path, kind: str) -> None:
    run = place / "runs" / kind
    (shown,) = answer(place, "status", run)["runs"]
    steps = 4 if kind == "four-bit" else 8
    assert (shown["state"], shown["step"], shown["steps"], shown["problems"]) == ("finished", steps, steps, [])
    assert shown["attempts"] == EXPECTED[kind]["attempts"] and shown["pids"] == {}
    if kind == "text":
        assert shown["last_incident"]["remedy"] == "quarantine"
    page = Path(answer(place, "report", run, "--out", tmp_path / "page.html")["report"]).read_text()
    assert "<html" in page and "Traceback" not in page
    if kind == "text":
        assert "rows.jsonl:7" in page and "killed by SIGKILL" in page
    diagnosis = answer(place, "diagnose", run)
    assert diagnosis["cause"] == ("unknown" if kind in ("tabular", "command") else "healthy")
    assert [one["attempt"] for one in diagnosis["attempts"]] == ([1, 2, 3] if kind == "text" else []), "those that failed"


@pytest.mark.parametrize("kind", KINDS)
def test_a_finished_run_is_not_trained_again(place: Path, kind: str) -> None:
    needs_bitsandbytes(kind)
    run = place / "runs" / kind
    summary = answer(place, *command_of(kind, run))
    assert summary["status"] == "finished"
    assert summary["artifact_sha256"] == (None if kind == "command" else EXPECTED[kind]["artifact_sha256"])
    assert summary["attempts"] == EXPECTED[kind]["attempts"], "no further attempt"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "command"])
def test_a_step_of_a_finished_run_is_computed_again(place: Path, kind: str) -> None:
    needs_bitsandbytes(kind)
    run = place / "runs" / kind
    row = lines(run / "steps.jsonl")[-1]
    replay = answer(place, "trial", run, "--step", row["step"])
    assert replay["finite"] and replay["samples"] == row["samples"]
    assert replay["loss"] == (row["loss"] if same_machine() else near(row["loss"], kind))
    if same_machine() and kind != "text":  # of the best state, which is the last one's in all others
        assert replay["weights_sha256"] == EXPECTED[kind]["artifact_sha256"]


@pytest.mark.parametrize(
    ("kind", "to"),
    [
        ("text", "adapter"),
        ("full", "merged"),
        *(pytest.param(kind, "adapter", marks=pytest.mark.long) for kind in ("preferences", "four-bit", "ranks")),
    ],
)
def test_a_finished_run_is_exported(place: Path, tmp_path: Path, kind: str, to: str) -> None:
    needs_bitsandbytes(kind)
    exported = answer(place, "export", place / "runs" / kind, "--to", to, "--out", tmp_path / "out")
    weights = next(file for file in exported["files"] if file["path"].endswith(".safetensors"))
    assert weights["sha256"] == EXPECTED[kind]["artifact_sha256"]
    assert exported["checked"]["greedy_equal"] and exported["checked"]["token_ids_equal"]


@pytest.mark.parametrize(
    "kind", ["text", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("preferences", "full", "four-bit", "ranks"))]
)
def test_a_finished_run_is_measured(place: Path, kind: str) -> None:
    needs_bitsandbytes(kind)
    measured = answer(place, "verify", place / "runs" / kind, "--generate", 0)
    assert measured["loads"] and measured["rows"] > 0
    if kind in ("text", "full", "ranks"):
        recorded = EXPECTED[kind]["loss"]
        assert measured["loss"]["base"] == near(recorded["eval_base"], kind)
        assert measured["loss"]["tuned"] == near(recorded["eval_tuned"], kind)


def test_exports_are_listed_and_an_exported_adapter_is_exported_again(place: Path, tmp_path: Path) -> None:
    listed = {one["name"]: one for one in answer(place, "models")["models"]}
    assert {name: one["adapter_sha256"] for name, one in listed.items() if name in ("text", "full")} == {
        name: EXPECTED[name]["artifact_sha256"] for name in ("text", "full")
    }
    assert [one["kind"] for one in listed["text"]["exports"]][:2] == ["adapter", "gguf-adapter"]
    again = answer(place, "export", place / "exports/text-adapter", "--to", "adapter", "--out", tmp_path / "again")
    assert EXPECTED["text"]["artifact_sha256"] in [file["sha256"] for file in again["files"]]


@pytest.mark.parametrize("kind", UNFINISHED)
def test_an_unfinished_run_is_finished_with_the_same_bits(tmp_path: Path, kind: str) -> None:
    name = f"{kind}-unfinished"
    settle(tmp_path, name)
    run = tmp_path / "runs" / name
    (before,) = answer(tmp_path, "status", run)["runs"]
    assert before["state"] == ("dead" if kind == "text" else "interrupted") and 4 <= before["step"] < 8
    committed = losses_of(run)
    summary = answer(tmp_path, *command_of(kind, run))
    assert (summary["status"], summary["steps"], summary["attempts"]) == ("finished", 8, before["attempts"] + 1)
    if kind == "text":
        assert [row["line"] for row in summary["quarantined"]] == [7], "a row that was left out stays out"
    if committed is not None:
        assert (losses_of(run) or [])[: len(committed)] == committed, "rows of committed steps stay as they were"
    check_bits(name, made_by_command(tmp_path) if kind == "command" else summary["artifact_sha256"], losses_of(run))
    (after,) = answer(tmp_path, "status", run)["runs"]
    assert (after["state"], after["step"]) == ("finished", 8)
