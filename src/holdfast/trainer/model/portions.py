"""Go through many things in portions, in smaller ones from the first that does not fit into memory on. Decides nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple, Protocol, TypeVar

from holdfast.trainer.common.device import release
from holdfast.trainer.common.oom import OutOfMemory, is_out_of_memory
from holdfast.trainer.parts.threads import at_the_same_time


class Portion(Protocol):
    """Some of the numbered things; half: the size that divides them."""

    @property
    def numbers(self) -> Sequence[int]: ...

    @property
    def half(self) -> int: ...


class Some(NamedTuple):
    """As many things as the size says."""

    numbers: list[int]

    @property
    def half(self) -> int:
        return len(self.numbers) // 2


AnyPortion = TypeVar("AnyPortion", bound=Portion)
Result = TypeVar("Result")


def first_of(left: list[int], size: int) -> list[Some]:
    """Take the first `size` of what is left as the next portion."""
    return [Some(left[:size])]


def in_portions(
    numbers: Sequence[int],
    size: int,
    cut: Callable[[list[int], int], Iterable[AnyPortion]],
    work: Callable[[AnyPortion], Result],
    at_once: int = 1,
) -> Iterator[tuple[AnyPortion, Result]]:
    """Yield each portion with what `work` made of it, until all `numbers` are done.

    cut: the next portions of what is left, of a size; asked again where one of them did not fit, and when they are done with. Raises what
    `work` raises where a single thing does not fit. at_once: portions that are worked on at the same time while they fit.
    """
    left = list(numbers)
    while left:
        done: set[int] = set()
        fits = True
        portions = iter(cut(left, size))
        while group := list(islice(portions, at_once)):
            try:
                results = at_the_same_time([partial(work, portion) for portion in group])
            except (OutOfMemory, RuntimeError, MemoryError) as error:
                if (len(group) == 1 and len(group[0].numbers) == 1) or not is_out_of_memory(error):
                    raise
                size, fits = size if len(group) > 1 else group[0].half, False
                at_once = 1
                break
            for portion, result in zip(group, results, strict=True):
                yield portion, result
                done.update(portion.numbers)
        left = [number for number in left if number not in done]
        if not fits:  # outside the except, whose error holds what was in the way
            release()
