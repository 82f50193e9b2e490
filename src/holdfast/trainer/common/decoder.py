"""A model's decoder layers, whose frozen weights are held elsewhere than all else: cut between ranks, or in main memory. Moves no layer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from holdfast.trainer.common.refuse import Refusal

_CHUNK = 1 << 22  # numbers whose checksum is taken at once


def decoder_layers(base: Any, setting: str) -> tuple[nn.Module, list[nn.Module]]:
    """Return the decoder and its layers in order. Raises Refusal, which names `setting`, where transformers marks no layers as such."""
    decoder = text_decoder(base)
    layers = [module for module in decoder.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers or decoder is base:
        text = f"{setting} is about decoder layers, and {type(base).__name__} has none that transformers marks as such"
        raise Refusal("launch_misconfigured", text, f"leave {setting} out; then start afresh with --run DIR")
    return decoder, layers


def text_decoder(base: Any) -> Any:
    """Return the module that turns token ids into the states before the output layer; the model itself where it has no such part.

    In a wrapped model that is the language half.
    """
    own = getattr(base, base.base_model_prefix, None)
    if isinstance(inner := getattr(getattr(base, "config", None), "text_config", None), PretrainedConfig):
        found = [module for module in base.modules() if isinstance(module, PreTrainedModel) and module.config is inner]
        own = next((module for module in found if module.get_output_embeddings() is None), own)
    return base if own is None else own


def table_of_positions(model: Any, prefix: Tensor | None = None) -> int | None:
    """Return for how many positions a model has learned a vector each, beyond which it knows no place; None where it has no such table.

    prefix: what a prompt adapter puts before each row, which takes some of them.
    """
    config = getattr(model, "config", None)
    known = None if config is None else getattr(config.get_text_config(), "max_position_embeddings", None)
    if not isinstance(known, int):
        return None
    last = ((name.rpartition(".")[2], one) for name, one in model.named_modules() if isinstance(one, nn.Embedding))
    taken = 0 if prefix is None else len(prefix)
    return known - taken if any(("pos" in name or name == "wpe") and one.num_embeddings >= known for name, one in last) else None


def frozen(layer: nn.Module) -> Iterator[nn.Parameter]:
    """Return the parameters of a layer that are not trained."""
    return (parameter for parameter in layer.parameters() if not parameter.requires_grad)


def bring(model: nn.Module, but: Iterable[Tensor], device: torch.device) -> None:
    """Move parameters and buffers to the device, in place, but these."""
    left = {id(tensor) for tensor in but}
    for tensor in (*model.parameters(), *model.buffers()):
        if id(tensor) not in left:
            tensor.data = tensor.data.to(device)


def checksum(tensor: Tensor, first: int = 0) -> int:
    """Return the sum of each number's bits times its place, modulo 2^64, computed on the device where the tensor lies.

    first: the place of its first number, less one; so the sums of pieces add up to that of the whole.
    """
    bits = tensor.detach().reshape(-1).view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.dtype.itemsize])
    total = torch.zeros((), dtype=torch.int64, device=bits.device)
    for start in range(0, len(bits), _CHUNK):
        part = bits[start : start + _CHUNK].long()
        total += (part * torch.arange(first + start + 1, first + start + 1 + len(part), device=bits.device)).sum()
    return int(total)
