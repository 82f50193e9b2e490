"""Large matrices and heavy tests by thirds: a run of the whole suite takes one third of them, chosen by the commit.

A test with `@pytest.mark.matrix` is a matrix: each third has every value of each axis. The heavy tests stand in heavy.txt, which
`scripts/test_times.py --heavy` writes. Asked for by file or by name, with HOLDFAST_TESTS_ALL=1, and without git, all of them run.
Hooks that `conftest.py` takes over; `thirds_of` is for a matrix inside of one test.
"""

from __future__ import annotations

import os
import subprocess
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

Cell = TypeVar("Cell", bound=Hashable)
HEAVY = Path(__file__).with_name("heavy.txt")
ALL, THIRD = "HOLDFAST_TESTS_ALL", "HOLDFAST_TESTS_THIRD"  # the second is set here, and workers read it


def third_of(commit: str) -> str:
    """ "0", "1" or "2", even over many commits; "" where there is no commit."""
    return str(int(commit[:12], 16) % 3) if commit else ""


def third() -> int | None:
    """Which third this run takes; None for all."""
    chosen = os.environ.get(THIRD, "")
    return int(chosen) if chosen else None


def chosen_of(cells: Sequence[tuple[Hashable, ...]], which: int | None) -> list[bool]:
    """Whether each cell is in that third: along a diagonal, and then what a value of one of several axes has no other cell for.

    One or two cells of a single axis take turns: there is one in each third.
    """
    if which is None:
        return [True] * len(cells)
    places: list[dict[Hashable, int]] = [{} for _ in cells[0]] if cells else []
    for cell in cells:
        for axis, value in zip(places, cell, strict=True):
            axis.setdefault(value, len(axis))
    parts = min(3, len(set(cells))) if len(places) == 1 else 3
    kept = [sum(axis[value] for axis, value in zip(places, cell, strict=True)) % parts == which % parts for cell in cells]
    if len(places) > 1:
        covered = {entry for cell, keep in zip(cells, kept, strict=True) if keep for entry in enumerate(cell)}
        for at, cell in enumerate(cells):
            if not set(enumerate(cell)) <= covered:
                kept[at] = True
                covered |= set(enumerate(cell))
    return kept


def thirds_of(cells: Iterable[Cell]) -> list[Cell]:
    """Those of the cells, tuples of an axis's value each or values of a single axis, that this run takes."""
    found = list(cells)
    kept = chosen_of([cell if isinstance(cell, tuple) else (cell,) for cell in found], third())
    return [cell for cell, keep in zip(found, kept, strict=True) if keep]


def is_left_out(place: int, which: int | None) -> bool:
    """Whether a run leaves out the heavy test at that place of the list, which is sorted by cost."""
    return which is not None and place % 3 != which


def heavy_tests() -> list[str]:
    """Names of heavy tests, the most expensive first."""
    return HEAVY.read_text(encoding="utf-8").splitlines()


def pytest_configure(config: pytest.Config) -> None:
    """Choose once, before workers are started: for a run that names no file."""
    config.addinivalue_line("markers", "matrix: a run of the whole suite takes a third of it, by the commit (support/thirds.py)")
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    os.environ[THIRD] = ""
    if config.args_source == pytest.Config.ArgsSource.TESTPATHS and not os.environ.get(ALL):
        os.environ[THIRD] = third_of(_commit())


def _commit() -> str:
    try:
        command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--verify", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def said() -> str:
    chosen = third()
    return (
        "matrices and heavy tests: all of them"
        if chosen is None
        else f"matrices and heavy tests: third {chosen + 1} of 3, by the commit; all with {ALL}=1"
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the other thirds out, of what is left after `long` is."""
    matrices: dict[str, list[Any]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("matrix"):
            matrices[item.nodeid.partition("[")[0]].append(item)
    places = {name: place for place, name in enumerate(heavy_tests())}
    alone = [item for item in items if item.nodeid in places and not item.get_closest_marker("matrix")]
    left_out = {item for item in alone if is_left_out(places[item.nodeid], third())}
    for cells in matrices.values():
        columns = {tuple(cell.callspec.indices[name] for cell in cells) for name in cells[0].callspec.params}  # one for each `parametrize`
        kept = chosen_of(list(zip(*sorted(columns), strict=True)), third())
        left_out |= {cell for cell, keep in zip(cells, kept, strict=True) if not keep}
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
