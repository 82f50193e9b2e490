"""The thirds of a matrix: together all of it, and each with every value of each axis."""

from __future__ import annotations

from itertools import product

import pytest

from conftest import ROOT
from support.thirds import chosen_of, heavy_tests, is_left_out, third_of

SHAPES = [(2, 2), (3, 3), (10, 7), (3, 1), (8, 6, 8), (6, 3)]


@pytest.mark.parametrize("sizes", SHAPES, ids=str)
def test_each_third_has_every_value_of_each_axis_and_together_they_are_all(sizes: tuple[int, ...]) -> None:
    cells = list(product(*map(range, sizes)))
    thirds = [{cell for cell, keep in zip(cells, chosen_of(cells, which), strict=True) if keep} for which in range(3)]
    assert set().union(*thirds) == set(cells)
    for chosen in thirds:
        for axis, size in enumerate(sizes):
            assert {cell[axis] for cell in chosen} == set(range(size))
        assert len(chosen) <= len(cells) / 3 + max(sizes)


def test_one_axis_is_parted_evenly() -> None:
    cells = [(name,) for name in "abcdefg"]
    assert [sum(chosen_of(cells, which)) for which in range(3)] == [3, 2, 2]
    assert all(chosen_of(cells, None))
    assert [chosen_of([("nvidia",), ("amd",)], which) for which in range(3)] == [[True, False], [False, True], [True, False]]
    assert all(chosen_of([("alone",)], which) == [True] for which in range(3))


def test_a_commit_always_has_the_same_third_and_commits_have_all() -> None:
    assert {third_of(f"{number * 7919:040x}"[::-1]) for number in range(50)} == {"0", "1", "2"}
    assert third_of("e882316f00d0") == third_of("e882316f00d0") and third_of("") == ""


def test_a_heavy_test_runs_in_one_third_and_is_still_there() -> None:
    names = heavy_tests()
    assert names and len(set(names)) == len(names)
    for place, name in enumerate(names):
        assert [is_left_out(place, which) for which in range(3)].count(False) == 1 and not is_left_out(place, None)
        file, _, test = name.partition("::")
        assert f"def {test.rpartition('::')[2].partition('[')[0]}(" in (ROOT / file).read_text(encoding="utf-8"), (
            f"{name} is gone: scripts/test_times.py --heavy"
        )
