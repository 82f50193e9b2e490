"""How far a tuned model has gone from its reference: the Kullback-Leibler divergence of its next tokens. Trains nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from holdfast.config.settings import Settings
from holdfast.data.token_set.token_set import TokenSet
from holdfast.run.types import LOGITS_AT_ONCE
from holdfast.trainer.common.oom import tag_out_of_memory
from holdfast.trainer.model.portions import in_portions
from holdfast.trainer.protocol.task import Asked
from holdfast.trainer.tasks.text.packing import TextBatch, grouped_batches
from holdfast.trainer.tasks.text.text_model import LabelLoss

_ROWS = 64

Before = Callable[[], AbstractContextManager[None]]


def kl_to_reference(
    before: Before, losses: LabelLoss, tokens: TokenSet, rows: list[int], settings: Settings, device: torch.device, asked: Asked
) -> float | None:
    """Return the mean of KL(tuned || reference) over answer tokens, in nats, on at most 64 rows.

    None where the model hides its output layer. before: the context in which the model that `losses` computes with is the reference.
    """
    if losses.head is None:
        return None
    total, labels = 0.0, 0

    def laid_out(left: list[int], budget: int) -> list[TextBatch]:
        return grouped_batches(tokens, left, budget, device)

    def summed(batch: TextBatch) -> float:
        with torch.inference_mode(), tag_out_of_memory(batch):
            tuned = losses.hidden(batch).index_select(0, batch.label_at)
            with before():
                base = losses.hidden(batch).index_select(0, batch.label_at)
            return _sum_divergence(before, losses, tuned, base)

    for batch, found in in_portions(rows[:_ROWS], settings.micro_batch_tokens, laid_out, summed):
        total, labels = total + found, labels + batch.labels
        asked(len(batch.numbers))
    return total / labels


def _sum_divergence(before: Before, losses: LabelLoss, tuned: Tensor, base: Tensor) -> float:
    """Sum the divergence over hidden states [labels, size] of both, a chunk of logits at a time."""
    assert losses.head is not None
    at_once, total = max(1, LOGITS_AT_ONCE // max(parameter.shape[0] for parameter in losses.head.layer.parameters())), 0.0
    for ours, theirs in zip(torch.split(tuned, at_once), torch.split(base, at_once), strict=True):
        p = torch.log_softmax(losses.head.logits(ours), -1)
        with before():
            q = torch.log_softmax(losses.head.logits(theirs), -1)
        total += float((p.exp() * (p - q)).sum(dtype=torch.float64))
    return total
