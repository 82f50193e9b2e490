"""docs/reference/who-resumes.md: the page is what its script makes of the recorded cases, and its cells say no more than was seen."""

from __future__ import annotations

import importlib
import json
import sys
from types import ModuleType
from typing import Any

import pytest

from conftest import ROOT


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks/foreign"))
    monkeypatch.delitem(sys.modules, "matrix", raising=False)  # benchmarks/models has one, too
    return importlib.import_module("scoreboard")


def test_the_page_is_made_of_the_recorded_cases(board: ModuleType) -> None:
    assert board.page(json.loads(board.RECORD.read_text())) == board.PAGE.read_text(), "python benchmarks/foreign/scoreboard.py"


WHOLE = {"weights": "a"}


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"departs": {"step": 1, "what": "weights"}}, "yes, 3 twice; differs from step 1 on, before the fault (weights)"),
        ({}, "yes, 3 twice, exact"),
        ({"looked": 0}, "yes, 3 twice, same weights"),
        ({"weights": "b"}, "yes, 3 twice, **other weights**"),
        ({"weights": None}, "yes, 3 twice, **no weights**"),
        ({"finite": False}, "yes, 3 twice, **NaN in the weights**"),
        ({"departs": {"step": 10, "what": "rows"}}, "yes, 3 twice, **departs at step 10** (rows)"),
        ({"ended": "never"}, "**never ends**"),
        ({"ended": "no: -9"}, "no (exit code -9)"),
        ({"ended": "no: 1; with room again, the same command: no: 1"}, "no (exit code 1)"),
        ({"ended": "no: 1; with room again, the same command: yes"}, "no; typed again, with room: yes, 3 twice, exact"),
    ],
)
def test_a_cell_says_what_was_seen(board: ModuleType, row: dict[str, Any], says: str) -> None:
    seen = {"fault": "kill", "ended": "yes", "starts": 2, "twice": 3, "weights": "a", "finite": True, "departs": None, "looked": 16}
    assert board.cell(seen | row, WHOLE) == says
