"""NEFTune: noise on embeddings while training, a function of (seed, step, sample, position, feature). Holds no generator and no state.

Jain et al. 2023 (arXiv 2310.05914): uniform, of alpha / sqrt(tokens * features); the tokens are those of the sample, not of a padded row.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from holdfast.trainer.model.layers.dropout import StepContext, words_of_positions


class EmbeddingNoise:
    """Adds it to what comes out of a model's embedding."""

    def __init__(self, model: Any, alpha: float, context: StepContext) -> None:
        self.alpha, self.context = alpha, context
        self.amount: Tensor | None = None
        model.get_input_embeddings().register_forward_hook(self._add)

    def enter(self, positions: Tensor, spans: tuple[int, ...] | None) -> None:
        """Set the micro-batch. positions: [rows, width], -1 where there is padding; spans: tokens of the sequences that share a row."""
        if spans is None:
            lengths = (positions >= 0).sum(1, keepdim=True).expand_as(positions)
        else:
            each = torch.tensor(spans, device=positions.device)
            lengths = each.repeat_interleave(each, output_size=positions.shape[1])[None]
        self.amount = self.alpha / lengths.clamp_min(1).float().sqrt()

    def _add(self, module: nn.Module, _inputs: Any, out: Tensor) -> Tensor:
        if not module.training or self.amount is None:
            return out
        words = words_of_positions(self.context, "embeddings", out.shape[1], out.shape[2])
        noisy: Tensor = out + (words.to(out.dtype) * 2.0**-31) * (self.amount[..., None] / out.shape[2] ** 0.5).to(out.dtype)
        return noisy
