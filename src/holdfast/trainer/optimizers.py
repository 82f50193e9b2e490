"""Which optimizer a config asks for: the one place where that is chosen."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from holdfast.core.config.config import Train
from holdfast.trainer.optimizer import AdamW, Block


def optimizer_of(parameters: Mapping[str, Tensor], train: Train, rates: Mapping[str, float] | None = None) -> Block:
    """The optimizer of `train`, with all its state, over these parameters. rates: by name, factors of the learning rate."""
    return AdamW(parameters, train, rates)
