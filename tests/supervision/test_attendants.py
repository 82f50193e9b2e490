"""What is said of a shim or a writer that hangs."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import wait_until
from holdfast.config.notify import Notify
from holdfast.run.folder import RunFolder
from holdfast.supervision.companions import notified
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
