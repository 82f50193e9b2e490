"""Take the 4- or 8-bit weights of a model that comes so out of bitsandbytes' layers, and leave plain ones with the widened weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from holdfast.base_model.packed import Packed
from holdfast.trainer.model.frozen.bitsandbytes_package import bitsandbytes
from holdfast.trainer.model.frozen.quantised import BLOCK


def unpack(model: Any, packed: Packed, dtype: torch.dtype) -> dict[str, Tensor]:
    """The packed weights as `LAYER:PART`, on the host; their layers in the model are torch's own from here on, with weights of `dtype`.

    What the widened ones compute with is what the packed ones stand for: nothing is rounded but to `dtype`.
    """
    library = bitsandbytes(f"a model that comes in {packed.kind}")
    theirs = (library.nn.Linear4bit, library.nn.Linear8bitLt)
    found: dict[str, Tensor] = {}
    for name, module in [(name, module) for name, module in model.named_modules() if isinstance(module, theirs)]:
        parts, wide = _of_8_bits(module) if packed.kind == "int8" else _of_4_bits(module, library)
        found |= {f"{name}:{part}": value.detach().contiguous().cpu() for part, value in parts.items()}
        plain = nn.Linear(module.in_features, module.out_features, bias=module.bias is not None, device="meta")
        plain.weight = nn.Parameter(wide.to(dtype), requires_grad=False)
        if module.bias is not None:
            plain.bias = nn.Parameter(module.bias.detach().to(dtype), requires_grad=False)
        model.set_submodule(name, plain)
    for name in ("is_loaded_in_4bit", "is_loaded_in_8bit", "is_quantized"):
        vars(model).pop(name, None)
    return found


def _of_4_bits(module: Any, library: Any) -> tuple[dict[str, Tensor], Tensor]:
    """A layer's packed weight as named tensors, and widened: [out, in], fp32."""
    state, shape = module.weight.quant_state, torch.Size((module.out_features, module.in_features))
    state.dtype = torch.float32  # what it is widened to
    if shape[1] % BLOCK and shape.numel() % BLOCK == 0:  # rows that are no whole blocks: see quantised.py
        state.shape = torch.Size((shape.numel() // BLOCK, BLOCK))
    wide = library.functional.dequantize_4bit(module.weight.data, state)
    return {"data": module.weight.data, **state.as_dict(packed=True)}, wide.view(shape)


def _of_8_bits(module: Any) -> tuple[dict[str, Tensor], Tensor]:
    data, scales = module.weight.data, module.weight.SCB
    return {"data": data, "scales": scales.float()}, data.float() * (scales.float() / 127.0)[:, None]
