"""Work at the same time, each piece in a Python thread of its own. Decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import BrokenBarrierError, Thread
from typing import TypeVar

import torch

Result = TypeVar("Result")


@contextmanager
def products_in(threads: int | None) -> Iterator[None]:
    """Compute matrix products in `threads` threads within the context; None: in as many as outside."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def at_the_same_time(works: Sequence[Callable[[], Result]]) -> list[Result]:
    """Run each work in a thread of its own; return their results in order.

    Raises what the first of them raised that did not merely wait for another. Each thread uses as many threads for products, and the same
    gradient mode, as the caller: torch begins each thread anew.
    """
    if len(works) == 1:
        return [works[0]()]
    threads, keeps = torch.get_num_threads(), torch.is_grad_enabled()
    found, errors = dict[int, Result](), list[BaseException]()

    def run(number: int) -> None:
        try:
            found[number] = works[number]()
        except BaseException as error:  # noqa: BLE001  # raised again by the thread that waits for this one
            errors.append(error)

    def begin(number: int) -> None:
        torch.set_num_threads(threads)  # also for products that do not ask torch how many
        with torch.set_grad_enabled(keeps):
            run(number)

    others = [Thread(target=begin, args=(number,), name=f"part-{number + 1}") for number in range(1, len(works))]
    for thread in others:
        thread.start()
    run(0)
    for thread in others:
        thread.join()
    try:
        if errors:
            raise next((error for error in errors if not isinstance(error, BrokenBarrierError)), errors[0])
    finally:
        errors.clear()  # an error that its own frame holds stays, and with it what the work had made
    return [found[number] for number in range(len(works))]
