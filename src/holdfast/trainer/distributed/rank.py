"""One of the processes that train one run together: what they tell each other, and how their gradients are added. Here: the group of one.

A group of several is trainer/distributed/group.py. No rank moves alone: what one of them meets, all of them hear of at the next exchange.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from holdfast.base.files import Json
from holdfast.trainer.common.batch import Batch
from holdfast.trainer.common.oom import OutOfMemory

Result = TypeVar("Result")


class PeerLost(Exception):
    """Another rank is gone, or cannot be reached: nothing more can be computed together."""


def no_facts(_: Any) -> Json:
    """Return no facts: nothing to tell other ranks but that the work went well."""
    return {}


class Rank:
    """Number of this process among `size`; the group of one, which costs nothing and waits for nobody."""

    number, size = 0, 1
    together = False  # whether each pass through the model is one of all ranks, because each holds a piece of its layers

    @property
    def first(self) -> bool:
        """Whether this is the rank that saves, journals and speaks for all."""
        return self.number == 0

    def exchange(self, facts: Json) -> list[Json]:
        """Tell all ranks `facts`; return what each told, by rank. Waits for all. Raises PeerLost."""
        return [facts]

    def agreed(self, work: Callable[[], Result], facts: Callable[[Result], Json] = no_facts) -> tuple[Result, list[Json]]:
        """Do `work`, then hear from all ranks; return its result, and what `facts` tells of each rank's.

        Raises OutOfMemory on all of them where one ran out of memory, about the same micro-batch, and PeerLost.
        """
        result = work()
        return result, self.exchange(facts(result))

    def sum_(self, tensors: Sequence[Tensor], in_tree: bool) -> None:
        """Put the sum over all ranks into each of `tensors`. in_tree: added pairwise, neighbours first. Raises PeerLost."""

    def share(self, tensors: Sequence[Tensor]) -> None:
        """Put what the first rank holds in `tensors` into all ranks'. Raises PeerLost."""

    def settle(self) -> None:
        """Wait for the device, so that what goes wrong there shows before the others are told that all is well."""


ALONE = Rank()


def parts_of(samples: list[int], lengths: Callable[[], Any], count: int) -> list[list[int]]:
    """Divide `samples` into `count` parts of about as many tokens, by their lengths alone. A part may be empty.

    The longest sample goes first, each to the part with the fewest tokens. lengths: asked for tokens of each row, where there is more than
    one part.
    """
    if count == 1:
        return [samples]
    sizes = np.asarray(lengths())[samples].tolist()
    parts: list[list[int]] = [[] for _ in range(count)]
    heap = [(0, at) for at in range(count)]
    for size, number in sorted(zip(sizes, samples, strict=True), key=lambda one: (-one[0], one[1])):
        tokens, at = heapq.heappop(heap)
        parts[at].append(number)
        heapq.heappush(heap, (tokens + size, at))
    return parts


def own_parts(rank: Rank, parts: list[list[int]], apart: bool = False) -> list[list[int]]:
    """Select the parts of `rank`, equally many for each: a contiguous block, or, with apart, every `rank.size`-th one."""
    if apart:
        return parts[rank.number :: rank.size]
    each = len(parts) // rank.size
    return parts[rank.number * each : (rank.number + 1) * each]


def told_of(full: OutOfMemory) -> Json:
    """Encode an OutOfMemory as JSON, from which another process can raise it (`heard_of`)."""
    batch = full.batch
    told: Json = {"text": str(full), "what": full.what, "device": full.device}
    if batch is not None:
        told["batch"] = [batch.numbers, batch.sources, batch.lengths, batch.size, batch.labels]
    return told


def heard_of(told: Json, rank: int) -> OutOfMemory:
    """Rebuild the error that `told_of` encoded on rank `rank`, alike on every rank."""
    batch = None
    if "batch" in told:
        numbers, sources, lengths, size, labels = told["batch"]
        batch = Batch(tuple(numbers), tuple(sources), tuple(lengths), size, labels)
    return OutOfMemory(batch, f"{told['text']} (rank {rank})", told["what"], told["device"])
