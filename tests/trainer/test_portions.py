"""Going through many things in portions that fit."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

from holdfast.trainer.model.portions import Some, first_of, in_portions


class _Kept:
    """Something large that a pass makes on the way."""


class _Worker:
    """Fits `most` things at once; says which sizes it was asked for, and whether what a failed pass had made was gone by then."""

    def __init__(self, most: int) -> None:
        self.most, self.sizes, self.left = most, list[int](), list[weakref.ref[_Kept]]()

    def __call__(self, some: Some) -> list[int]:
        assert all(one() is None for one in self.left), "what the failed pass made is still there"
        self.sizes.append(len(some.numbers))
        kept = _Kept()
        self.left.append(weakref.ref(kept))
        if len(some.numbers) > self.most:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return [number * number for number in some.numbers]


def test_what_does_not_fit_is_halved_from_there_on_and_everything_has_its_turn_once() -> None:
    work = _Worker(3)
    gc.disable()  # what goes only when the collector comes is in the way until then
    try:
        found = [(some.numbers, squares) for some, squares in in_portions(range(11), 8, first_of, work)]
    finally:
        gc.enable()
    assert [number for numbers, _ in found for number in numbers] == list(range(11))
    assert all(squares == [number**2 for number in numbers] for numbers, squares in found)
    assert work.sizes == [8, 4, 2, 2, 2, 2, 2, 1]


def test_portions_at_the_same_time_are_worked_on_alone_from_where_they_do_not_fit() -> None:
    both, most = threading.Barrier(2, timeout=300), _Worker(2)

    def work(some: Some) -> list[int]:
        if 6 not in some.numbers and not both.broken:
            both.wait()  # alone, one would wait for ever
        elif not both.broken:
            both.abort()
            raise RuntimeError("out of memory")
        return most(some)

    def pairs(left: list[int], size: int) -> list[Some]:
        return [Some(left[at : at + size]) for at in range(0, len(left), size)]

    gc.disable()
    try:
        found = [(some.numbers, squares) for some, squares in in_portions(range(9), 2, pairs, work, at_once=2)]
    finally:
        gc.enable()
    assert found == [([0, 1], [0, 1]), ([2, 3], [4, 9]), ([4, 5], [16, 25]), ([6, 7], [36, 49]), ([8], [64])]


def test_one_thing_alone_that_does_not_fit_and_any_other_error_end_it() -> None:
    with pytest.raises(RuntimeError, match="out of memory"):
        list(in_portions([1, 2], 2, first_of, _Worker(0)))

    def broken(some: Some) -> None:
        raise RuntimeError("size mismatch")

    with pytest.raises(RuntimeError, match="size mismatch"):
        list(in_portions([1, 2], 2, first_of, broken))
