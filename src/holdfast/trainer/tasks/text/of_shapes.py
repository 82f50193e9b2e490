"""The task on texts made of shapes alone, for tracing its step: rows of given lengths instead of a run's own."""

from __future__ import annotations

import numpy as np
import torch

from holdfast.config.config import Config
from holdfast.config.objectives import OBJECTIVES
from holdfast.config.settings import Settings
from holdfast.data.token_set.token_set import TokenSet
from holdfast.data.token_set.worse import WORSE
from holdfast.trainer.tasks.text.compared import StartValues
from holdfast.trainer.tasks.text.task import TextTask


def of_shapes(config: Config, settings: Settings, lengths: list[int], labels: int, device: torch.device) -> tuple[TextTask, int]:
    """Make the task on samples of these lengths, of whose tokens `labels` are learned; and the number of its decoder layers."""
    task = TextTask(config, settings, made_rows(lengths, labels, config.train.objective), device)
    if task.losses.head:
        task.losses.head.fused = False  # its kernel needs less, and a start may leave it out
    if task.compared is not None and task.compared.kind.reference and config.adapter.start:
        numbers = sum(tensor.numel() for tensor in task.trained.values())
        # of a card they lie in main memory, where they take no room of what is traced
        block = torch.empty(1).expand(numbers) if settings.device == "cuda" else torch.empty(numbers)
        task.compared.start = StartValues(block, task.trained)
    return task, task.layers


def made_rows(lengths: list[int], labels: int, objective: str = "sft") -> TokenSet:
    """Make rows of these lengths whose last tokens are learned; each has a share of `labels` in proportion to its length.

    Where an objective takes pairs, a row's first half is its better answer with its prompt, the second the worse one.
    """
    paired = OBJECTIVES[objective].rows == "pairs"
    parts = [part for length in lengths for part in ((length - length // 2, length // 2) if paired else (length,))]
    tokens = sum(parts)
    learned = np.zeros(tokens, np.uint8)
    able = tokens - len(parts)  # a first token is never learned
    left = min(labels, able)
    for at, (end, length) in enumerate(zip(np.cumsum(parts), parts, strict=True)):
        share = left if at == len(parts) - 1 else min(left, round(labels * (length - 1) / max(1, able)))
        share = min(share, length - 1)
        learned[end - share : end] = 1
        left -= share
        if paired and at % 2:
            learned[end - length : end] += WORSE
    starts = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    count = len(lengths)
    return TokenSet(np.ones(tokens, np.int32), learned, starts, np.zeros(count, np.int32), np.arange(1, count + 1), ("rows",), 0, 0)
