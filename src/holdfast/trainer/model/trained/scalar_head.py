"""A scalar head on a causal language model: what transformers' class for sequence classification has in place of the output layer."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import nn
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING

from holdfast.trainer.common.refuse import Refusal

NAME = "score"  # as transformers and PEFT know it


def add_scalar_head(base: Any, seed: int) -> None:
    """Give the model a layer `score` that makes one number of a hidden state; its values follow from the seed.

    Raises Refusal where transformers has no class that would load it.
    """
    kind = type(base.config)
    wanted = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING.get(kind, None)
    decoder = getattr(base, base.base_model_prefix, None)
    if wanted is None or wanted.base_model_prefix != base.base_model_prefix or decoder is None or decoder is base:
        text = f"transformers {transformers.__version__} has no class of {base.config.model_type} models with a scalar head"
        raise Refusal("launch_misconfigured", text, "take another base model, or train.objective: dpo; then start afresh with --run DIR")
    config = base.config.get_text_config()
    torch.manual_seed(seed)
    head = nn.Linear(config.hidden_size, 1, bias=False)
    nn.init.normal_(head.weight, std=getattr(config, "initializer_range", 0.02))
    base.add_module(NAME, head.to(next(base.parameters()).device))
