"""Take the 4- or 8-bit weights of a model that comes so out of bitsandbytes' layers, and leave plain ones with the widened weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from holdfast.base_model.packed import PackedWeights
from holdfast.trainer.common.bitsandbytes_package import bitsandbytes
from holdfast.trainer.model.frozen.quantised import BLOCK


def unpack(model: Any, packed: PackedWeights, dtype: torch.dtype, widen: bool) -> dict[str, Tensor]:
    """Put torch's own layers in the place of bitsandbytes': with weights of `dtype` where they are to be widened, else with none yet.

    What the widened ones compute with is what the packed ones stand for: nothing is rounded but to `dtype`. Gives back the packed weights
    as `LAYER:PART`, where they lie; none of those that are widened, which is done a layer after the other, as the output layer always is.
    """
    library = bitsandbytes(f"a model that comes in {packed.kind}")
    theirs = (library.nn.Linear4bit, library.nn.Linear8bitLt)
    found: dict[str, Tensor] = {}
    for name in [name for name, module in model.named_modules() if isinstance(module, theirs)]:
        module = model.get_submodule(name)
        plain = nn.Linear(module.in_features, module.out_features, bias=module.bias is not None, device="meta")
        plain.weight.requires_grad_(False)
        if widen or module is model.get_output_embeddings():
            wide = _wide_of_8_bits(module) if packed.kind == "int8" else _wide_of_4_bits(module, library)
            plain.weight = nn.Parameter(wide.to(dtype), requires_grad=False)
            del wide
        else:
            parts = {"data": module.weight.data, "scales": module.weight.SCB.float()} if packed.kind == "int8" else _of_4_bits(module)
            found |= {f"{name}:{part}": value.detach().contiguous() for part, value in parts.items()}
        if module.bias is not None:
            plain.bias = nn.Parameter(module.bias.detach().to(dtype), requires_grad=False)
        model.set_submodule(name, plain)
        del module
    for name in ("is_loaded_in_4bit", "is_loaded_in_8bit", "is_quantized"):
        vars(model).pop(name, None)
    return found


def _of_4_bits(module: Any) -> dict[str, Tensor]:
    """Return a layer's packed weight as named tensors, described so that it is widened to fp32."""
    state, shape = module.weight.quant_state, torch.Size((module.out_features, module.in_features))
    state.dtype = torch.float32
    if shape[1] % BLOCK and shape.numel() % BLOCK == 0:  # rows that are no whole blocks: see quantised.py
        state.shape = torch.Size((shape.numel() // BLOCK, BLOCK))
    return {"data": module.weight.data, **state.as_dict(packed=True)}


def _wide_of_4_bits(module: Any, library: Any) -> Tensor:
    """Dequantise a layer's 4-bit weight to [out, in], fp32."""
    _of_4_bits(module)
    wide: Tensor = library.functional.dequantize_4bit(module.weight.data, module.weight.quant_state)
    return wide.view(module.out_features, module.in_features)


def _wide_of_8_bits(module: Any) -> Tensor:
    wide: Tensor = module.weight.data.float().mul_((module.weight.SCB.float() / 127.0)[:, None])
    return wide
