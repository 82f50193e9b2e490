"""Types of models from rows to what each consumer loads: some in CI, by thirds; all that were gone through in long runs."""

from __future__ import annotations

import json
import sys

import pytest

from conftest import ROOT

sys.path.insert(0, str(ROOT / "benchmarks" / "models"))

from matrix import RESULTS, cell
from models_page import PAGE, written

IN_CI = ("qwen3_5", "qwen3_moe", "gpt_oss", "gemma3", "mixtral", "qwen3_vl")
KNOWN = json.loads(RESULTS.read_text(encoding="utf-8"))


@pytest.mark.matrix
@pytest.mark.parametrize("kind", IN_CI)
def test_a_type_of_today_is_right_wherever_it_is_loaded(kind: str) -> None:
    found = cell(kind)
    assert found["verdict"] == KNOWN["types"][kind]["verdict"] == "right", found


@pytest.mark.long
@pytest.mark.parametrize("kind", [kind for kind in KNOWN["types"] if kind not in IN_CI])
def test_a_type_is_as_the_page_says(kind: str) -> None:
    assert cell(kind)["verdict"] == KNOWN["types"][kind]["verdict"]


def test_the_page_is_that_of_the_results() -> None:
    assert PAGE.read_text(encoding="utf-8") == written(KNOWN), "python scripts/models_page.py"
