"""What `make test` takes of a matrix: every value of each axis, always the same cells; and what it leaves out is still there."""

from __future__ import annotations

import random
from itertools import product

import hypothesis
import pytest

from conftest import ROOT
from support.selection import _PART, EXPLORE, choose_part, draws, heavy_tests, load_examples, places_of

SHAPES = [(2, 2), (3, 3), (10, 7), (3, 1), (8, 6, 8), (6, 3)]


@pytest.mark.parametrize("sizes", SHAPES, ids=str)
def test_the_part_has_every_value_of_each_axis_and_is_always_the_same(sizes: tuple[int, ...]) -> None:
    cells = list(product(*map(range, sizes)))
    taken = {cell for cell, keep in zip(cells, choose_part(cells), strict=True) if keep}
    for axis, size in enumerate(sizes):
        assert {cell[axis] for cell in taken} == set(range(size))
    assert len(taken) <= len(cells) / 3 + max(sizes)
    assert choose_part(cells) == choose_part(cells)


@pytest.mark.matrix
@pytest.mark.parametrize("first", ["a", "b", "c"])
@pytest.mark.parametrize(("second", "more"), [({}, 0), ({"x": 1}, 0), ([], 1), ({}, 1)])
def test_each_value_of_a_matrix_of_tests_is_taken(request: pytest.FixtureRequest, first: str, second: object, more: int) -> None:
    """Of this one, whichever of its tests are there."""
    cells = [item for item in request.session.items if getattr(item, "originalname", "") == request.node.originalname]
    told = [(str(cell.callspec.params["second"]) + str(cell.callspec.params["more"]), cell.callspec.params["first"]) for cell in cells]
    keeps = choose_part(places_of(cells))
    for axis in range(2):
        assert {one[axis] for one, keep in zip(told, keeps, strict=True) if keep} == {one[axis] for one in told}
    assert sum(keeps) <= 6


def test_of_one_axis_a_third_is_taken() -> None:
    assert sum(choose_part([(name,) for name in "abcdefg"])) == 3
    assert choose_part([("nvidia",), ("amd",)]) == [True, False] and choose_part([("alone",)]) == [True]


def test_heavy_cells_are_taken_only_where_no_other_has_their_values() -> None:
    cells = list(product(range(3), range(3)))
    assert choose_part(cells)[0] and not choose_part(cells, heavy=[0])[0]
    for heavy in ([0], [0, 1], [0, 1, 2]):
        taken = [cell for cell, keep in zip(cells, choose_part(cells, heavy), strict=True) if keep]
        assert all({cell[axis] for cell in taken} == {0, 1, 2} for axis in (0, 1))
    assert sum(choose_part(cells, heavy=[0, 1, 2])[:3]) == 1, "one of a row that is heavy as a whole"
    assert choose_part([(name,) for name in "abcdefgh"], heavy=[0, 3]) == [name in "bf" for name in "abcdefgh"]
    assert choose_part([("alone",)], heavy=[0]) == [True]


def test_fewer_cases_are_drawn_where_a_part_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    for part, count in (("1", 5), ("", 20)):
        monkeypatch.setenv(_PART, part)
        assert draws(20, 5) == count


def test_what_is_left_out_is_still_there_and_no_file_is_left_out_whole() -> None:
    names = heavy_tests()
    assert names and len(set(names)) == len(names)
    for name in names:
        file, _, test = name.partition("::")
        source = (ROOT / file).read_text(encoding="utf-8")
        assert f"def {test.rpartition('::')[2].partition('[')[0]}(" in source, f"{name} is gone: scripts/test_times.py --heavy"


def test_examples_are_the_same_unless_new_ones_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        monkeypatch.setenv(EXPLORE, "1")
        load_examples()
        assert not hypothesis.settings.default.derandomize  # type: ignore[attr-defined]
    finally:
        monkeypatch.delenv(EXPLORE)
        load_examples()
    assert hypothesis.settings.default.derandomize and hypothesis.settings.default.database is None  # type: ignore[attr-defined]


@pytest.mark.parametrize("time", [1, 2])
def test_each_test_begins_with_the_same_random_numbers(time: int) -> None:
    assert random.random() == random.Random(0).random(), time
