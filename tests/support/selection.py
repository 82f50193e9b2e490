"""What `make test` takes: always the same tests, the same examples, the same numbers.

Of a matrix (`@pytest.mark.matrix`, or `part_of` for cells inside of a test) it takes a part that has every value of each axis. It
leaves out the heavy tests that heavy.txt names, which `scripts/test_times.py --heavy` writes. Asked for by file or by name, and with
HOLDFAST_TESTS_ALL=1, all of them run. HOLDFAST_TESTS_ORDER=reversed takes the tests from the last to the first. With
HOLDFAST_TESTS_EXPLORE=1 property tests draw new examples; else each has its own, fixed ones.
Hooks that `conftest.py` takes over.
"""

from __future__ import annotations

import gc
import os
import random
import sys
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import hypothesis
import pytest

Cell = TypeVar("Cell", bound=Hashable)
HEAVY = Path(__file__).with_name("heavy.txt")
ALL, EXPLORE, ORDER = "HOLDFAST_TESTS_ALL", "HOLDFAST_TESTS_EXPLORE", "HOLDFAST_TESTS_ORDER"
_PART = "HOLDFAST_TESTS_PART"  # set here, and workers read it
_SHARE = 3  # a part is about a third of a matrix


def takes_part() -> bool:
    """Return whether this run takes a part, not all."""
    return bool(os.environ.get(_PART))


def choose_part(cells: Sequence[tuple[Hashable, ...]], heavy: Collection[int] = (), share: int = _SHARE) -> list[bool]:
    """Return of each cell whether it is in the part: those along a diagonal, and one for each value that none of these has.

    heavy: the places of cells that are taken only where no other has their values; share: a part is about so much of them. Of a single
    axis it is so much of those that are not heavy.
    """
    if cells and len(cells[0]) == 1:
        light = ([at for at in range(len(cells)) if at not in heavy] or [*range(len(cells))])[::share]
        return [at in light for at in range(len(cells))]
    places: list[dict[Hashable, int]] = [{} for _ in cells[0]] if cells else []
    for cell in cells:
        for axis, value in zip(places, cell, strict=True):
            axis.setdefault(value, len(axis))
    kept = [sum(axis[value] for axis, value in zip(places, cell, strict=True)) % share == 0 for cell in cells]
    kept = [keep and at not in heavy for at, keep in enumerate(kept)]
    covered = {entry for cell, keep in zip(cells, kept, strict=True) if keep for entry in enumerate(cell)}
    for at, cell in sorted(enumerate(cells), key=lambda entry: entry[0] in heavy):
        if not set(enumerate(cell)) <= covered:
            kept[at] = True
            covered |= set(enumerate(cell))
    return kept


def part_of(cells: Iterable[Cell], share: int = _SHARE) -> list[Cell]:
    """Return those of the cells, tuples of an axis's value each or values of a single axis, that this run takes: about one of `share`."""
    found = list(cells)
    if not takes_part():
        return found
    kept = choose_part([cell if isinstance(cell, tuple) else (cell,) for cell in found], share=share)
    return [cell for cell, keep in zip(found, kept, strict=True) if keep]


def draws(whole: int, part: int) -> int:
    """Return how many random cases a test draws: `part` where this run takes a part, else `whole`. The first ones are the same."""
    return part if takes_part() else whole


def heavy_tests() -> list[str]:
    """Return the names of the tests that are left out, the most expensive first."""
    return HEAVY.read_text(encoding="utf-8").splitlines()


def load_examples() -> None:
    """Have property tests draw the same examples each time, or new ones. A busy machine is no fault."""
    hypothesis.settings.register_profile("same", deadline=None, derandomize=True, database=None)
    hypothesis.settings.register_profile("explore", deadline=None, derandomize=False, print_blob=True)
    hypothesis.settings.load_profile("explore" if os.environ.get(EXPLORE) else "same")


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Begin each test with the same random numbers, whatever ran before it."""
    random.seed(0)
    for module, seed in (("numpy", "random.seed"), ("torch", "manual_seed")):
        found: Any = sys.modules.get(module)
        for name in seed.split("."):
            found = getattr(found, name, None)
        if found is not None:
            found(0)


def pytest_configure(config: pytest.Config) -> None:
    """Choose once, before workers are started: a run that names no file takes a part. Nothing that is imported becomes garbage."""
    gc.disable()  # a third of what collecting takes; until then
    config.addinivalue_line("markers", "matrix: `make test` takes a part of it (support/selection.py)")
    if "PYTEST_XDIST_WORKER" not in os.environ:
        whole = config.args_source == pytest.Config.ArgsSource.TESTPATHS and not os.environ.get(ALL)
        os.environ[_PART] = "1" if whole else ""


def describe() -> str:
    """Return what this run takes, in words."""
    taken = f"a part of each matrix, no heavy tests; all with {ALL}=1" if takes_part() else "whole matrices, heavy tests"
    examples = "new examples" if os.environ.get(EXPLORE) else f"the same examples each time, new ones with {EXPLORE}=1"
    return f"{taken}; {examples}; order: {os.environ.get(ORDER) or 'as written'}"


def places_of(cells: Sequence[Any]) -> list[tuple[Hashable, ...]]:
    """Return where each test of a matrix stands on each axis: one for each `parametrize`, and for each fixture with parameters.

    By its values: the indices that pytest has of them count the tests.
    """
    named = [mark.args[0] for mark in cells[0].iter_markers("parametrize")]
    axes = [[name.strip() for name in (names.split(",") if isinstance(names, str) else names)] for names in named]
    axes += [[name] for name in cells[0].callspec.params if not any(name in axis for axis in axes)]
    return [tuple(tuple(id(cell.callspec.params[name]) for name in axis) for axis in axes) for cell in cells]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is not taken, of what is left after `long` is; put the rest in order."""
    gc.freeze()
    gc.enable()
    if takes_part():
        matrices: dict[str, list[Any]] = defaultdict(list)
        for item in items:
            if item.get_closest_marker("matrix"):
                matrices[item.nodeid.partition("[")[0]].append(item)
        heavy = set(heavy_tests())
        left_out = {item for item in items if item.nodeid in heavy and not item.get_closest_marker("matrix")}
        for cells in matrices.values():
            kept = choose_part(places_of(cells), [at for at, cell in enumerate(cells) if cell.nodeid in heavy])
            left_out |= {cell for cell, keep in zip(cells, kept, strict=True) if not keep}
        if left_out:
            config.hook.pytest_deselected(items=list(left_out))
            items[:] = [item for item in items if item not in left_out]
    if os.environ.get(ORDER) == "reversed":
        items.reverse()
