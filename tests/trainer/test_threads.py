"""Pieces of work at the same time."""

from __future__ import annotations

import gc
import weakref
from functools import partial
from threading import Barrier, get_ident

import pytest
import torch

from holdfast.trainer.parts.threads import at_the_same_time, products_in


def test_each_piece_has_a_thread_of_its_own_and_computes_as_the_thread_that_asks() -> None:
    all_there = Barrier(3, timeout=300)

    def work(number: int) -> tuple[int, int, int, bool]:
        all_there.wait()
        return number, get_ident(), torch.get_num_threads(), torch.is_grad_enabled()

    before = torch.get_num_threads()
    with products_in(before + 1), torch.no_grad():
        found = at_the_same_time([partial(work, number) for number in range(3)])
    assert [one[0] for one in found] == [0, 1, 2]
    assert len({one[1] for one in found}) == 3
    assert {one[2:] for one in found} == {(before + 1, False)}
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("fails", [0, 1])
def test_what_one_raised_is_raised_and_not_that_another_waited_for_it_and_nothing_of_it_stays(fails: int) -> None:
    both, made = Barrier(2), list[weakref.ref[Barrier]]()

    def work(number: int) -> None:
        kept = Barrier(1)
        made.append(weakref.ref(kept))
        if number == fails:
            both.abort()
            raise ValueError("of its own")
        both.wait()

    gc.disable()
    try:
        with pytest.raises(ValueError, match="of its own") as caught:
            at_the_same_time([partial(work, 0), partial(work, 1)])
        del caught
        assert [one() for one in made] == [None, None]
    finally:
        gc.enable()
