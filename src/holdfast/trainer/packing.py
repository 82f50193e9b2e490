"""Micro-batches of a step's samples: packed into rows without padding, or padded in groups of like length. Touches no model."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from holdfast.rows.tokenset import TokenSet
from holdfast.trainer.tasks.base import Batch

Row: TypeAlias = tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]


def packed_batches(tokens: TokenSet, samples: list[int], budget: int, device: torch.device) -> list[Batch]:
    """First-fit, longest first, into rows of at most `budget` tokens (a longer sample alone). Follows from the lengths alone."""
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


def grouped_batches(tokens: TokenSet, samples: list[int], budget: int, device: torch.device) -> list[Batch]:
    """Shortest first, rows times longest within `budget`; for architectures whose samples cannot share a row."""
    groups: list[list[int]] = []
    for number in sorted(samples, key=lambda number: (tokens.length(number), number)):
        if groups and tokens.length(number) * (len(groups[-1]) + 1) <= budget:
            groups[-1].append(number)
        else:
            groups.append([number])
    return [_batch(tokens, group, False, device) for group in groups]


def _batch(tokens: TokenSet, numbers: list[int], packed: bool, device: torch.device) -> Batch:
    sources = tuple(str(tokens.source(number)) for number in numbers)
    return assemble([tokens.row(number) for number in numbers], tuple(numbers), sources, tokens.pad, packed, device)


def assemble(rows: list[Row], numbers: tuple[int, ...], sources: tuple[str, ...], pad: int, packed: bool, device: torch.device) -> Batch:
    """Lay rows of (ids, learned) out as one micro-batch: one after the other, or each in a row of its own, padded on the right."""
    lengths = tuple(len(ids) for ids, _ in rows)
    width = sum(lengths) if packed else max(lengths)
    shape = (1, width) if packed else (len(rows), width)
    ids, owners, positions = np.full(shape, pad, np.int64), np.full(shape, -1, np.int64), np.full(shape, -1, np.int64)
    predicting, wanted = [], []
    start = 0
    for at, (row, learned) in enumerate(rows):
        start = start if packed else at * width
        span = slice(start, start + len(row))
        ids.reshape(-1)[span], owners.reshape(-1)[span], positions.reshape(-1)[span] = row, numbers[at], np.arange(len(row))
        targets = np.flatnonzero(learned[1:])  # a sample's first token is never a target: nothing stands before it
        predicting.append(targets + start)
        wanted.append(row[1:][targets].astype(np.int64))
        start += len(row)
    label_at, label_ids = np.concatenate(predicting), np.concatenate(wanted)
    return Batch(
        numbers,
        sources,
        ids=torch.from_numpy(ids).to(device),
        samples=torch.from_numpy(owners).to(device),
        positions=torch.from_numpy(positions).to(device),
        label_at=torch.from_numpy(label_at).to(device),
        label_ids=torch.from_numpy(label_ids).to(device),
        lengths=lengths,
        packed=packed,
        tokens=sum(lengths),
        labels=len(label_ids),
    )
