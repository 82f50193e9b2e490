"""What every way of training a model has in common."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor, nn

from holdfast.run.artifact import Artifact
from holdfast.trainer.protocol.step_hooks import StepHooks


class TrainedWeights(Protocol):
    """What is trained on a base model.

    model: the base with whatever is put on it. tensors: live leaves, all fp32 or all bf16, under the names of the artifact's file.
    prefix: embeddings that stand before every sample, [tokens, size], where there are such.
    """

    model: nn.Module
    tensors: dict[str, Tensor]
    form: Artifact
    step_hooks: StepHooks
    prefix: Tensor | None
