"""Micro-batches of a step's samples: packed into rows without padding, or padded in groups of like length. Touches no model."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from holdfast.data.token_set.token_set import TokenSet, sequences
from holdfast.trainer.common.batch import Batch

Row: TypeAlias = tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]


@dataclass(frozen=True)
class TextBatch(Batch):
    """A micro-batch of texts. ids, samples, positions: whole numbers [rows, width], -1 in the last two where there is padding.

    label_at: positions, counted through all rows, whose next token is learned; label_ids: those tokens; both [labels].
    packed: sequences stand one after the other in a single row, `spans` long, between `ends` (0 and where each ends, int32, on the device);
    else each has a row of its own. A sample is one sequence, of a pair two: the better one, then the worse one. counts: labels of each
    sequence; good: whether it is one to be given.
    """

    ids: Tensor
    samples: Tensor
    positions: Tensor
    label_at: Tensor
    label_ids: Tensor
    ends: Tensor | None
    packed: bool
    spans: tuple[int, ...]
    counts: tuple[int, ...]
    good: tuple[bool, ...]
    group: Any = None  # what the micro-batches of a step share, where they do
    weights: tuple[float, ...] | None = None  # of each sample, how much it counts; None: all alike
    label_weights: Tensor | None = None  # the same of each label, times its share of it, fp32 [labels]
    counted: float | None = None  # their sum, where labels of one sample may differ

    @property
    def divisor(self) -> float:
        if self.counted is not None:
            return self.counted
        if self.weights is None:
            return float(self.labels)
        if self.group is not None:
            return math.fsum(self.weights)  # answers that are held against each other have one loss together
        return math.fsum(weight * count for weight, count in zip(self.weights, self.counts, strict=True))


def packed_batches(tokens: TokenSet, samples: list[int], budget: int, device: torch.device) -> list[TextBatch]:
    """Pack samples first-fit, longest first, into rows of at most `budget` tokens, a longer one alone. Lengths alone decide."""
    groups: list[list[int]] = []
    room: list[int] = []
    for number in sorted(samples, key=lambda number: (-tokens.length(number), number)):
        length = tokens.length(number)
        at = next((at for at, free in enumerate(room) if length <= free), None)
        if at is None:
            groups.append([])
            room.append(budget)
            at = len(groups) - 1
        groups[at].append(number)
        room[at] -= length
    return [_batch(tokens, group, True, device) for group in groups]


def grouped_batches(tokens: TokenSet, samples: list[int], budget: int, device: torch.device) -> list[TextBatch]:
    """Group samples, shortest first, so that rows times the longest stay within `budget`, where samples cannot share a row."""
    groups: list[list[int]] = []
    for number in sorted(samples, key=lambda number: (tokens.length(number), number)):
        if groups and tokens.length(number) * (len(groups[-1]) + 1) <= budget:
            groups[-1].append(number)
        else:
            groups.append([number])
    return [_batch(tokens, group, False, device) for group in groups]


def _batch(tokens: TokenSet, numbers: list[int], packed: bool, device: torch.device) -> TextBatch:
    sources = tuple(str(tokens.source(number)) for number in numbers)
    found = [(number, part, good) for number in numbers for part, good in sequences(*tokens.row(number))]
    owners = tuple(number for number, _, _ in found)
    counts = [tokens.counts_of(number) for number in owners]
    weights = None if counts[0] is None else [count for count in counts if count is not None]
    batch = assemble([part for _, part, _ in found], owners, sources, tokens.pad, packed, device, weights)
    lengths = tuple(tokens.length(number) for number in numbers)
    batch = replace(batch, numbers=tuple(numbers), lengths=lengths, good=tuple(good for _, _, good in found))
    if tokens.share is not None and weights is not None:
        labels = [own[1:][learned[1:] > 0] for own, (_, (_, learned), _) in zip(weights, found, strict=True)]
        batch = replace(batch, counted=math.fsum(np.concatenate(labels)))
    return batch if tokens.weight is None else replace(batch, weights=tuple(tokens.weight[numbers].tolist()))


def assemble(
    rows: list[Row],
    numbers: tuple[int, ...],
    sources: tuple[str, ...],
    pad: int,
    packed: bool,
    device: torch.device,
    weights: list[npt.NDArray[np.float32]] | None = None,
) -> TextBatch:
    """Lay sequences of (ids, learned) out as one micro-batch: one after the other, or each in a row of its own, padded on the right.

    weights: of each sequence how much each of its tokens counts, where not all count alike.

    All of it is one block, which goes to a card in one copy from pinned memory; nobody waits for that.
    """
    lengths = tuple(len(ids) for ids, _ in rows)
    shape = (1, sum(lengths)) if packed else (len(rows), max(lengths))
    targets = [np.flatnonzero(learned[1:]) for _, learned in rows]  # a first token is never a target: nothing stands before it
    cells, labels = shape[0] * shape[1], sum(map(len, targets))
    bounds = len(rows) // 2 + 1 if packed else 0  # len(rows) + 1 numbers of half the width
    sizes = [cells, cells, cells, labels, labels, bounds, 0 if weights is None else (labels + 1) // 2]
    block = np.empty(sum(sizes), np.int64)
    ids, owners, positions, label_at, label_ids, ends, counting = np.split(block, np.cumsum(sizes)[:-1])
    ids.fill(pad)
    owners.fill(-1)
    positions.fill(-1)
    start = label = 0
    for at, ((row, _), wanted) in enumerate(zip(rows, targets, strict=True)):
        start = start if packed else at * shape[1]
        span, learned = slice(start, start + len(row)), slice(label, label + len(wanted))
        ids[span], owners[span], positions[span] = row, numbers[at], np.arange(len(row))
        label_at[learned], label_ids[learned] = wanted + start, row[1:][wanted]
        start, label = start + len(row), label + len(wanted)
    if packed:
        ends.view(np.int32)[: len(rows) + 1] = np.cumsum((0, *lengths))
    if weights is not None:
        counting.view(np.float32)[:labels] = np.concatenate([own[1:][wanted] for own, wanted in zip(weights, targets, strict=True)])
    parts = on_device(torch.from_numpy(block), device).split_with_sizes(sizes)
    return TextBatch(
        numbers,
        sources,
        lengths,
        cells,
        labels,
        ids=parts[0].view(shape),
        samples=parts[1].view(shape),
        positions=parts[2].view(shape),
        label_at=parts[3],
        label_ids=parts[4],
        ends=parts[5].view(torch.int32)[: len(rows) + 1] if packed else None,
        packed=packed,
        spans=lengths,
        counts=tuple(map(len, targets)),
        good=(True,) * len(rows),
        label_weights=None if weights is None else parts[6].view(torch.float32)[:labels],
    )


def on_device(block: Tensor, device: torch.device) -> Tensor:
    """Copy a block to the device, to a card asynchronously: torch keeps the pinned memory until that copy is done."""
    return block.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else block
