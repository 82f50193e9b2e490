"""Embeddings of single tokens that are trained: PEFT holds and saves them; here no copy of the whole table is made in each pass."""

from __future__ import annotations

from functools import partial
from typing import Any

import peft
import torch
from peft.tuners.trainable_tokens import TrainableTokensLayer
from torch import Tensor, nn

from holdfast.base_model.folder import read_model
from holdfast.config.config import Config
from holdfast.data.tokens.codec import load_codec
from holdfast.trainer.common.refuse import Refusal

_NAME = "default"


def token_numbers(config: Config, base: Any) -> list[int]:
    """Resolve the tokens that `adapter.trainable_token_indices` names by text or id. Raises Refusal for one the model lacks."""
    wanted = config.adapter.trainable_token_indices
    known = base.get_input_embeddings().num_embeddings
    tokenizer = load_codec(read_model(config.model).folder).tokenizer if any(isinstance(one, str) for one in wanted) else None
    found = []
    for one in wanted:
        number = one if isinstance(one, int) else tokenizer.token_to_id(one) if tokenizer else None
        if number is None or number >= known:
            why = "is no single token of the model's tokenizer" if number is None else f"is {number}, the embedding has {known} rows"
            hint = (
                "give tokens as they stand in tokenizer.json; a model gets new ones with model.resize_token_embeddings and save_pretrained"
            )
            raise Refusal("token_id_out_of_range", f"adapter.trainable_token_indices: {one!r} {why}", hint)
        found.append(number)
    return sorted(set(found))


def use_lean_tokens(model: nn.Module) -> None:
    """Look trained rows up beside the frozen table, and beside a tied output layer's product, in place of PEFT's copies of the table.

    Raises Refusal for a table whose rows are scaled, as Gemma's are, where PEFT is older than 0.18: it leaves the scale out of each row.
    """
    for layer in model.modules():
        if isinstance(layer, TrainableTokensLayer):
            if hasattr(layer.base_layer, "embed_scale") and not hasattr(layer, "_get_embed_scale"):
                text = f"adapter.trainable_token_indices: PEFT {peft.__version__} does not scale this model's embeddings beside them"
                raise Refusal("package_conflict", text, "pip install -U 'peft>=0.18'; then rerun the same command to resume")
            layer.forward = partial(_forward, layer)


def _forward(layer: Any, x: Tensor) -> Tensor:
    base = layer.base_layer
    out: Tensor = base(x)
    if layer.disable_adapters:
        return out
    numbers, rows = layer.token_indices[_NAME], layer.trainable_tokens_delta[_NAME]
    index = torch.tensor(numbers, device=out.device)
    if isinstance(base, nn.Linear):
        return out.index_copy(-1, index, (x.to(rows.dtype) @ rows.t()).to(out.dtype))
    place = torch.searchsorted(index, x).clamp_max(len(numbers) - 1)
    scale = layer._get_embed_scale() if hasattr(base, "embed_scale") else None
    trained = rows.index_select(0, place.flatten()).view(*x.shape, -1)
    trained = trained if scale is None else trained * scale.to(trained.dtype)
    return torch.where((index[place] == x)[..., None], trained.to(out.dtype), out)
