"""Supervised fine-tuning of a causal language model with an adapter: answers are learned, prompts are given."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.core.config import Config
from holdfast.core.timeline import Settings
from holdfast.rows.tokenset import TokenSet
from holdfast.trainer.dropout import StepContext, make_stateless
from holdfast.trainer.model import adapter_config, add_adapter, artifact_tensors, load_base
from holdfast.trainer.tasks.base import Batch

IGNORED = -100


class Sft:
    """Task `sft`: the base model stays frozen, a LoRA adapter is trained on the rows' answer tokens."""

    def __init__(self, config: Config, settings: Settings, tokens: TokenSet, device: torch.device) -> None:
        base, self.notes = load_base(config, settings, device)
        self.model: nn.Module = add_adapter(base, config)
        self.context = StepContext(config.train.seed)
        make_stateless(self.model, self.context)
        self.artifact = artifact_tensors(self.model)
        self.adapter_config = adapter_config(self.model, config.model)
        self.tokens = tokens
        self.device = device

    def batches(self, samples: list[int], budget: int) -> list[Batch]:
        return micro_batches(self.tokens, samples, budget, self.device)

    def loss_sum(self, batch: Batch, step: int) -> Tensor:
        self.context.enter(step, batch.samples, batch.positions)
        return label_loss(self.model, batch)

    def state(self) -> dict[str, Tensor]:
        return {}


def label_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Sum of cross-entropies over the labels of a micro-batch, in fp32."""
    logits = model(input_ids=batch.ids, attention_mask=(batch.positions >= 0).long(), use_cache=False).logits
    flat = logits[:, :-1].reshape(-1, logits.shape[-1]).float()
    return F.cross_entropy(flat, batch.targets[:, 1:].reshape(-1), ignore_index=IGNORED, reduction="sum")


def micro_batches(tokens: TokenSet, samples: list[int], budget: int, device: torch.device) -> list[Batch]:
    """Group samples, shortest first, so that rows times longest stays within `budget`; the grouping follows from lengths alone."""
    ordered = sorted(samples, key=lambda number: (tokens.length(number), number))
    groups: list[list[int]] = []
    for number in ordered:
        if groups and tokens.length(number) * (len(groups[-1]) + 1) <= budget:
            groups[-1].append(number)
        else:
            groups.append([number])
    return [_padded(tokens, group, device) for group in groups]


def _padded(tokens: TokenSet, numbers: list[int], device: torch.device) -> Batch:
    width = max(tokens.length(number) for number in numbers)
    shape = (len(numbers), width)
    ids = torch.full(shape, tokens.pad, dtype=torch.int64)
    targets = torch.full(shape, IGNORED, dtype=torch.int64)
    positions = torch.full(shape, -1, dtype=torch.int64)
    labels = 0
    for at, number in enumerate(numbers):
        row, learned = (torch.from_numpy(part.copy()) for part in tokens.row(number))
        size = len(row)
        ids[at, :size] = row.long()
        targets[at, :size] = torch.where(learned.bool(), row.long(), IGNORED)
        positions[at, :size] = torch.arange(size)
        labels += int(learned[1:].sum())
    samples = torch.tensor(numbers, dtype=torch.int64)[:, None].expand(shape)
    sources = tuple(str(tokens.source(number)) for number in numbers)
    ids, targets, samples, positions = (tensor.to(device) for tensor in (ids, targets, samples, positions))
    return Batch(tuple(numbers), sources, ids, targets, samples, positions, int((positions >= 0).sum()), labels)
