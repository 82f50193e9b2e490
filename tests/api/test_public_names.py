"""What of holdfast is public for Python: these names and no others, documented, and cheap to import."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast.base import NATIVE_WINDOWS

PUBLIC = {"Checkup", "Finding", "Run", "Stop", "doctor", "train"}
OF_A_RUN = {
    *("open", "path", "name", "status", "steps", "learned", "losses", "evaluations", "events", "rows", "summary", "warnings"),
    *("adapter_path", "artifact_path", "report"),
}
PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "python.md").read_text(encoding="utf-8")


def test_exactly_these_names_are_public_and_documented() -> None:
    assert set(holdfast.__all__) == PUBLIC == set(holdfast._PLACES) - {"__version__"}
    for name in PUBLIC:
        assert getattr(holdfast, name).__doc__, name
        assert name in PAGE, f"docs/reference/python.md does not name {name}"


def test_exactly_these_names_of_a_run_are_public_and_documented() -> None:
    names = {name for name in vars(holdfast.Run) if not name.startswith("_")}
    assert names == OF_A_RUN
    assert all(f"`{name}" in PAGE or f".{name}" in PAGE for name in names - {"path", "name"})


def test_importing_holdfast_imports_nothing_else() -> None:
    code = "import sys; before = set(sys.modules); import holdfast; dir(holdfast); print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {name for name in done.stdout.split() if name.partition(".")[0] not in sys.stdlib_module_names} == {"holdfast"}


def test_no_public_name_is_that_of_a_module() -> None:
    """Importing the module would put it in the name's place."""
    assert not {name for name in holdfast.__all__ if importlib.util.find_spec(f"holdfast.{name}")}


ON_WINDOWS = """
import importlib.metadata, sys, typing
sys.platform, sys.modules["fcntl"], sys.argv = "win32", None, ["holdfast", "doctor"]
"""


@pytest.mark.parametrize(
    "start", ["from holdfast.cli import entry; entry()", "import runpy; runpy.run_module('holdfast', run_name='__main__')"]
)
def test_native_windows_gets_one_line_that_says_where_to_go(start: str) -> None:
    done = subprocess.run([sys.executable, "-c", ON_WINDOWS + start], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, f"holdfast: {NATIVE_WINDOWS}\n")


@pytest.mark.parametrize("start", ["import holdfast; holdfast.train", "import holdfast.base.files"])
def test_native_windows_is_named_where_python_imports_what_needs_linux(start: str) -> None:
    done = subprocess.run([sys.executable, "-c", ON_WINDOWS + start], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == f"ImportError: {NATIVE_WINDOWS}"
