"""Compute parts of a step at the same time, each in a Python thread of its own: every core has a product of its own to work on.

A part's bits follow from its samples and from the threads a product is computed in, never from how many parts there are at once; the
parts' gradients are added in the tree of `trainer/step/step.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from threading import Barrier

import torch
from torch import Tensor

from holdfast.trainer.common.batch import Batch
from holdfast.trainer.common.oom import tag_out_of_memory
from holdfast.trainer.optim.optimizer import FlatOptimizer
from holdfast.trainer.parts.threads import at_the_same_time
from holdfast.trainer.protocol.task import AnyTask

# Of a part: its gradients, flat, and its losses and measures, [1 + measures].
Found = tuple[Tensor, Tensor]


def groups_in_tree(
    task: AnyTask,
    optimizer: FlatOptimizer,
    step: int,
    laid: Sequence[Sequence[Batch]],
    divisor: float,
    announce: Callable[[str, int, Batch], float],
    at_once: int,
) -> Tensor:
    """Leave the parts' gradients, added in a binary tree, in the optimizer; losses and measures, added alike: [1 + measures].

    at_once: parts that are computed at the same time, a power of two. Micro-batches that are, are announced as one.
    """
    held: list[Found] = []
    number = 0
    for done, start in enumerate(range(0, len(laid), at_once), 1):
        group = laid[start : start + at_once]
        found = [(torch.zeros_like(optimizer.gradient), torch.zeros(1 + len(task.measures), dtype=torch.float64)) for _ in group]
        for batches in itertools.zip_longest(*group):
            _together(task, optimizer, step, number, batches, found, divisor, announce)
            number += 1
        while len(found) > 1:
            found = [_added(one, other) for one, other in itertools.zip_longest(found[::2], found[1::2])]
        for _ in range((done & -done).bit_length() - 1):
            found = [_added(held.pop(), found[0])]
        held += found
    ((gradient, sums),) = held
    optimizer.gradient.copy_(gradient)
    return sums


def _added(one: Found, other: Found) -> Found:
    return one[0].add_(other[0]), one[1].add_(other[1])


def _together(
    task: AnyTask,
    optimizer: FlatOptimizer,
    step: int,
    number: int,
    batches: Sequence[Batch | None],
    found: Sequence[Found],
    divisor: float,
    announce: Callable[[str, int, Batch], float],
) -> None:
    """Add each micro-batch's share to what was found of its part. A part may have none left. Raises OutOfMemory about all of them."""
    own = [(batch, kept) for batch, kept in zip(batches, found, strict=True) if batch is not None]
    whole, leaves = _as_one([batch for batch, _ in own]), list(optimizer.parameters.values())
    factors = {}

    def tell(phase: str) -> None:
        factors[phase] = announce(phase, number, whole)

    between = Barrier(len(own), action=lambda: tell("backward"))

    def one_pass(batch: Batch, kept: Found) -> None:
        try:
            loss, measured = task.loss_sum(batch, step)
            loss = loss * factors["forward"] if factors["forward"] != 1.0 else loss
            between.wait()
            gradients = torch.autograd.grad(loss / divisor, leaves, materialize_grads=True)
        except BaseException:
            between.abort()
            raise
        torch._foreach_add_(optimizer.parts(kept[0]), list(gradients))
        if factors["backward"] != 1.0:
            kept[0].mul_(factors["backward"])
        kept[1].add_(torch.cat([loss.detach().double().reshape(1), measured.double().reshape(-1)]))

    with tag_out_of_memory(whole):
        tell("forward")
        task.prepare_passes([batch for batch, _ in own])
        at_the_same_time([partial(one_pass, *pair) for pair in own])


def _as_one(batches: Sequence[Batch]) -> Batch:
    """Merge micro-batches that are computed at the same time into one, as the pulse, faults and out-of-memory handling see them."""
    if len(batches) == 1:
        return batches[0]
    numbers, sources, lengths = (
        tuple(itertools.chain.from_iterable(getattr(batch, name) for batch in batches)) for name in ("numbers", "sources", "lengths")
    )
    return Batch(numbers, sources, lengths, sum(batch.size for batch in batches), sum(batch.labels for batch in batches))
