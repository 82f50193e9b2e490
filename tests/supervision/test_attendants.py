"""What is said of a shim or a writer that hangs."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.run.folder import RunFolder
from holdfast.supervision.companions.watched import Attendants


@pytest.mark.parametrize("role", ["shim", "writer"])
def test_a_hanging_helper_is_called_by_the_name_of_the_glossary(role: str, tmp_path: Path) -> None:
    said: list[str] = []
    run = RunFolder(tmp_path)
    Attendants(run, 60.0, said.append)._told(role, 75.0, wakes=False)
    assert said[0].startswith(f"the {role} gave no sign of life for 75 s: it was ended")
    assert [event["role"] for event in run.events()] == [role]
