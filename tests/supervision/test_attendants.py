"""What is said of a shim or a writer that hangs, and what becomes of the other processes beside a run."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from conftest import wait_until
from holdfast.base.files import write_json
from holdfast.base.identity import alive, identify
from holdfast.config.notify import Notify
from holdfast.report.summarise import Journals, summarise
from holdfast.run.folder import RunFolder
from holdfast.supervision.companions import notified, sampled
from holdfast.supervision.companions.watched import Attendants


@pytest.mark.parametrize("role", ["shim", "writer"])
def test_a_hanging_helper_is_called_by_the_name_of_the_glossary(role: str, tmp_path: Path) -> None:
    said: list[str] = []
    run = RunFolder(tmp_path)
    Attendants(run, 60.0, said.append)._told(role, 75.0, wakes=False)
    assert said[0].startswith(f"the {role} gave no sign of life for 75 s: it was ended")
    assert [event["role"] for event in run.events()] == [role]


def test_what_tells_a_person_begins_again_where_it_hangs_and_its_user_hears_of_it_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    run, started = RunFolder(tmp_path), tmp_path / "started"
    monkeypatch.setattr(notified, "_PATIENCE_S", 0.1)
    script = f"echo once more >> {started}; exec sleep 600"  # as if it were stopped
    monkeypatch.setattr(notified, "module_command", lambda *_: ["sh", "-c", script])
    with notified.notified(run, Notify(command="true"), 0.3, said.append):
        wait_until(lambda: bool(said) and started.read_text().count("\n") > 1)
    assert "run.notify gave no sign of life" in said[0]
    failed = [event for event in run.events() if event["event"] == "notify_failed"]
    assert failed[0]["code"] is None and failed[0]["silent_s"] > 0


@pytest.mark.parametrize("when", ["in the run", "behind its end"])
def test_a_process_of_run_notify_that_fails_is_told_once_and_in_the_summary(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    run = RunFolder(tmp_path)
    waits = f"until [ -e {run.summary_file} ]; do sleep 0.02; done; " if when == "behind its end" else ""
    monkeypatch.setattr(notified, "module_command", lambda *_: ["sh", "-c", f"{waits}exit 3"])
    with notified.notified(run, Notify(command="true"), 60.0, said.append):
        if not waits:
            wait_until(lambda: bool(said))
        told = Journals([], list(run.events()), [], {}, {})
        write_json(run.summary_file, summarise("finished", None, told, {"useful_s": None}))
    assert json.loads(run.summary_file.read_text())["notify_failed"] is True
    assert len(said) == 1 and said[0].startswith("the process of run.notify has ended with exit code 3: it tells nobody any more"), said
    assert [event["code"] for event in run.events() if event["event"] == "notify_failed"] == [3]


def test_what_reads_the_machine_is_woken_where_it_was_stopped_and_begins_again_where_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From then on a run had no readings, and nobody was told."""
    said: list[str] = []
    started, woken = tmp_path / "started", tmp_path / "woken"
    monkeypatch.setattr(sampled, "_AGAIN_S", 0.1)
    script = f"trap 'touch {woken}' CONT; echo $$ >> {started}; while true; do sleep 0.05; done"
    monkeypatch.setattr(sampled, "module_command", lambda *_: ["sh", "-c", script])

    def begun() -> list[int]:
        return [*map(int, started.read_text().split())] if started.exists() else []

    with sampled.sampled(RunFolder(tmp_path), said.append):
        wait_until(lambda: len(begun()) == 1)
        os.kill(begun()[0], signal.SIGSTOP)
        wait_until(woken.exists)
        assert len(begun()) == 1 and not said
        for count in (2, 3):
            os.kill(begun()[-1], signal.SIGKILL)
            wait_until(lambda count=count: len(begun()) == count)  # type: ignore[misc]
        last = identify(begun()[-1])
    assert said == ["the process that reads this machine was killed by SIGKILL: another one takes its place; the run itself is whole"]
    assert last is not None and not alive(last)
