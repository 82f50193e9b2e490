"""Frozen matrices in 4 or 8 bits by bitsandbytes: quantised once, kept by content, widened one product at a time, forward and backward.

Linear layers but the output layer. The module stays torch's, its weight is bitsandbytes' parameter, which PEFT knows how to widen, too.
Before they are used, one layer of each shape is held against its own 16-bit weight: a kernel that loads and is wrong is seen.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from holdfast.base.cache import cache_folder
from holdfast.base.files import sha256, write_bytes
from holdfast.base_model.folder import weight_files
from holdfast.config.frozen_formats import FORMATS
from holdfast.trainer.model.frozen.bitsandbytes_package import bitsandbytes
from holdfast.trainer.model.frozen.halves import held_linear, widened

BLOCK = 64  # numbers that share a scale
_ROWS = 8  # of the product that is compared


class Held:
    """What became of a model: the SHA-256 of its quantised weights, and what is wrong with them, empty where nothing is."""

    def __init__(self, digest: str, fault: str) -> None:
        self.sha256, self.fault = digest, fault


def hold_quantised(
    model: Any, folder: Path, kind: str, double: bool, dtype: torch.dtype, device: torch.device, given: dict[str, Tensor] | None = None
) -> Held:
    """Put 4- or 8-bit weights in the place of the model's. dtype: of the arithmetic. Raises Refusal without bitsandbytes.

    device: that computes, also where the weights are kept elsewhere.

    given: weights as they came, as `LAYER:PART`; the model's own are those, widened.
    """
    library = bitsandbytes(f"train.frozen {kind}")
    layers = {name: module for name, module in layers_of(model) if given is None or f"{name}:data" in given}
    place = _place(folder, kind, double, dtype, library.__version__) if given is None else None
    tensors = given or (_kept(place, layers) if place else None)
    if given is not None:
        digest = hashlib.sha256(save(given)).hexdigest()
    elif tensors is None:
        tensors = {}
        for name, module in layers.items():
            parts = _parts(module.weight.detach().to(device).float(), kind, double, library)
            tensors |= {f"{name}:{part}": value.contiguous().cpu() for part, value in parts.items()}
        data = save(tensors)
        digest = hashlib.sha256(data).hexdigest()
        if place:
            _keep(place, data)
    else:
        assert place is not None
        digest = sha256(place)
    assert tensors is not None
    fault, seen = "", set()
    for name, module in layers.items():
        weight, shape = module.weight.detach(), tuple(module.weight.shape)
        parts = {part: tensors[f"{name}:{part}"] for part in _names(tensors, name)}
        module.weight = held = _parameter(parts, kind, weight.shape, library, weight.device)
        if kind == "int8":
            vars(module)["state"] = SimpleNamespace(SCB=held.SCB)  # where PEFT's DoRA looks for the scales
        vars(module)["forward"] = partial(held_linear, module)
        if not fault and shape not in seen:
            seen.add(shape)
            there = SimpleNamespace(weight=_parameter(parts, kind, weight.shape, library, device), bias=None)
            fault = _fault(name, there, weight.to(device).float(), kind, dtype)
    return Held(digest, fault)


def layers_of(model: Any) -> Iterator[tuple[str, nn.Linear]]:
    """The layers whose weights are held so."""
    output = model.get_output_embeddings()
    for name, module in model.named_modules():
        if type(module) is nn.Linear and module is not output:
            yield name, module


def _parts(weight: Tensor, kind: str, double: bool, library: Any) -> dict[str, Tensor]:
    """A quantised weight as named tensors."""
    if kind == "int8":
        peaks = weight.abs().amax(1).clamp_min(1e-12)
        return {"data": torch.round(weight * (127.0 / peaks)[:, None]).to(torch.int8), "scales": peaks}
    packed, state = library.functional.quantize_4bit(_in_blocks(weight), blocksize=BLOCK, compress_statistics=double, quant_type=kind)
    return {"data": packed, **state.as_dict(packed=True)}


def _in_blocks(weight: Tensor) -> Tensor:
    """The weight, cut into rows of one block where its own rows are no multiple of one: bitsandbytes' CPU kernels (0.50) widen such rows
    wrongly, without a word. The numbers and their blocks are the same."""
    return weight if weight.shape[1] % BLOCK == 0 or weight.numel() % BLOCK else weight.reshape(-1, BLOCK)


def _parameter(kept: dict[str, Tensor], kind: str, shape: torch.Size, library: Any, device: torch.device) -> Any:
    parts = {name: tensor.to(device) for name, tensor in kept.items()}
    data = parts.pop("data")
    if kind == "int8":
        return library.nn.Int8Params(data, requires_grad=False, has_fp16_weights=False, CB=data, SCB=parts["scales"])
    state = library.functional.QuantState.from_dict(parts, device=data.device)
    made = library.nn.Params4bit(data, requires_grad=False, quant_state=state, quant_type=kind, bnb_quantized=True)
    made.of_shape = shape
    return made


def _names(tensors: dict[str, Tensor], name: str) -> list[str]:
    return [key.rpartition(":")[2] for key in tensors if key.rpartition(":")[0] == name]


def _place(folder: Path, kind: str, double: bool, dtype: torch.dtype, version: str) -> Path | None:
    """Where these weights are kept, beside the token cache; None where there is no home."""
    cache = cache_folder(os.environ)
    if cache is None:
        return None
    files = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in weight_files(folder)]
    key = hashlib.sha256(repr((files, kind, double, str(dtype), version)).encode()).hexdigest()
    return cache / "quantised" / f"{key[:32]}.safetensors"


def _kept(place: Path, layers: dict[str, nn.Linear]) -> dict[str, Tensor] | None:
    """The tensors that were kept, where they are whole and of these layers."""
    try:
        tensors = load_file(place)
    except Exception:  # noqa: BLE001  (missing, torn or not ours: it is made again)
        return None
    return tensors if {key.rpartition(":")[0] for key in tensors} == set(layers) else None


def _keep(place: Path, data: bytes) -> None:
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(place, data, durable=False)
    except OSError:  # a full disk, or a home that cannot be written: it is quantised again at the next start, to the same bits
        return


def _fault(name: str, module: Any, weight: Tensor, kind: str, dtype: torch.dtype) -> str:
    """What one layer computes otherwise than with its own weight, in words; empty where it is as near as such a type comes."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(_ROWS, weight.shape[1], generator=generator).to(weight.device, dtype).requires_grad_()
    with torch.enable_grad():
        out = held_linear(module, x)
        (back,) = torch.autograd.grad(out, x, torch.ones_like(out))
    with torch.no_grad():
        wanted: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {
            "weight": lambda: (widened(module.weight, torch.float32), weight),
            "product": lambda: (out.float(), x.float() @ weight.t()),
            "backward product": lambda: (back.float(), torch.ones_like(out).float() @ weight),
        }
        for what, pair in wanted.items():
            ours, own = pair()
            gap = float((ours - own).norm() / own.norm().clamp_min(1e-30))
            if not gap <= FORMATS[kind].apart * (1 if what == "weight" else 2):
                return (
                    f"the {what} of {name} in {kind} is {gap:.2f} of its norm off its 16-bit one (up to {FORMATS[kind].apart:.2f} is usual)"
                )
    return ""
