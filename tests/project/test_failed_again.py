"""A failure is taken back only where it is one of few, of a test of processes, and does not come again."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest

from conftest import ROOT

ONE, OTHER = "tests/acceptance/test_kills.py::test_a", "tests/watch/test_watch.py::test_b[x]"


@pytest.fixture(scope="module")
def second() -> ModuleType:
    spec = importlib.util.spec_from_file_location("second_look", ROOT / "scripts" / "second_look.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("failed", "why"),
    [
        ([], "nothing on record: the run died before it could tell"),
        (["tests/acceptance/test_kills.py"], "a file that cannot be collected"),
        (["tests/trainer/test_step.py::test_a"], "a test of numbers"),
        ([ONE, "tests/data/test_rows.py::test_a"], "one of them is no test of processes"),
        ([f"{ONE}[{number}]" for number in range(4)], "four"),
    ],
)
def test_a_failure_is_final(second: ModuleType, failed: list[str], why: str) -> None:
    assert second.look_again(failed, lambda test: True) == 1, why


def test_each_has_to_pass_each_time_and_is_named(second: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    ran: list[str] = []
    assert second.look_again([ONE, OTHER], lambda test: not ran.append(test)) == 0
    assert ran == [ONE] * 3 + [OTHER] * 3
    told = capsys.readouterr().err
    assert told.count("UNSTEADY") == 2 and ONE in told and OTHER in told
    answers = iter([True, True, False])
    assert second.look_again([ONE], lambda test: next(answers)) == 1
    assert f"failed again by itself: {ONE}" in capsys.readouterr().err


def test_the_folders_are_there(second: ModuleType) -> None:
    assert all((ROOT / "tests" / folder).is_dir() for folder in second.FOLDERS)
