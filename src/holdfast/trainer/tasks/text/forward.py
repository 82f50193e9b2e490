"""What a forward pass over a batch of sequences offers to a loss that compares answers. The model behind it is text_model.py."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from holdfast.data.token_set.token_set import TokenSet
from holdfast.trainer.tasks.text.packing import TextBatch


class Forward(Protocol):
    """A model, the rows it is trained on, and how a batch of them enters it."""

    tokens: TokenSet
    device: torch.device
    model: nn.Module
    trained: dict[str, Tensor]
    losses: Any
    packing: bool

    def enter(self, batch: TextBatch, step: int) -> None:
        """Tell dropout, attention and kernels which samples and positions the next forward pass is about."""

    def keeping(self) -> AbstractContextManager[Any]:
        """Return the context in which a forward pass keeps what its backward pass needs."""
