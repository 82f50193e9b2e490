"""Frozen matrices in 4 or 8 bits by bitsandbytes: quantised once, kept by content, widened one product at a time, forward and backward.

Linear layers but the output layer, and experts in stacks. The module stays torch's, its weight is bitsandbytes' parameter, which PEFT
knows how to widen, too.
Before they are used, one layer of each shape is held against its own 16-bit weight: a kernel that loads and is wrong is seen.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from holdfast.base.cache import cache_folder
from holdfast.base.errors import error_message
from holdfast.base.files import sha256
from holdfast.base_model.folder import weight_files
from holdfast.base_model.packed import PackedWeights
from holdfast.config.choices.frozen_formats import FORMATS
from holdfast.trainer.common.bitsandbytes_package import bitsandbytes
from holdfast.trainer.common.on_card import on_card
from holdfast.trainer.common.oom import is_out_of_memory
from holdfast.trainer.common.refuse import Refusal
from holdfast.trainer.model.frozen.experts import multiply_held, stacks_of
from holdfast.trainer.model.frozen.halves import held_linear, widened
from holdfast.trainer.model.frozen.tensor_file import write_tensors

BLOCK = 64  # numbers that share a scale
# ROCm's kernels take blocks of 64 since 0.49 on RDNA, since 0.50 on CDNA (bitsandbytes#1748, #1856)
_NEWER = "pip install -U 'bitsandbytes>=0.50'; then rerun the same command to resume; or start afresh with train.frozen=half"
_MOST = 2**31 - 1  # numbers of one matrix
_ROWS = 8  # of the product that is compared


class QuantisedWeights:
    """What became of a model: the SHA-256 of its quantised weights, and what is wrong with them, empty where nothing is."""

    def __init__(self, digest: str, fault: str) -> None:
        self.sha256, self.fault = digest, fault


def hold_quantised(
    model: Any,
    folder: Path,
    form: PackedWeights,
    dtype: torch.dtype,
    device: torch.device,
    home: torch.device,
    narrow: torch.dtype | None = None,
    given: dict[str, Tensor] | None = None,
) -> QuantisedWeights:
    """Put 4- or 8-bit weights in the place of the model's, layer by layer: no device holds more than those and one matrix in fp32 twice.

    The model's own may lie in their files, mapped: at a restart one of each shape is read, and the rest from what was kept.

    dtype: of the arithmetic; device: that computes; home: where the weights are kept; narrow: what the model's own are rounded to first.

    given: weights as they came, as `LAYER:PART`; the model's own are then left unread. Raises Refusal without bitsandbytes.
    """
    library = bitsandbytes(f"train.frozen {form.kind}")
    matrices = {name: rest for name, *rest in matrices_of(model) if given is None or f"{name}:data" in given}
    place = _place(folder, form, dtype, library.__version__) if given is None else None
    kept = _open_cached(place, matrices) if place else None
    tensors: dict[str, Tensor] = {}
    fault, seen = "", set()
    for name, (module, own_name) in matrices.items():
        weight = getattr(module, own_name).detach()
        whole, weight = weight.shape, weight.reshape(-1, weight.shape[-1])  # experts stand below each other
        if given is not None:
            parts = _parts_of(given, name)
        elif kept is not None:
            parts = kept(name)
        else:
            parts = _parts(_own(weight, device, narrow), form, library)
        there = SimpleNamespace(weight=_parameter(parts, form.kind, weight.shape, library, device), bias=None)
        if not fault and weight.shape not in seen:
            seen.add(weight.shape)
            own = widened(there.weight, torch.float32) if given is not None else _own(weight, device, narrow)
            fault = _fault(name, there, own, form.kind, dtype)
            del own
        parts = {part: value.to(home) for part, value in parts.items()}
        held = there.weight if home == device else _parameter(parts, form.kind, weight.shape, library, home)
        setattr(module, own_name, held)
        if kept is None:
            tensors |= {f"{name}:{part}": value for part, value in parts.items()}
        if len(whole) > 2:
            held.of_shape, held.computed = whole, dtype
            continue
        if form.kind == "int8":
            vars(module)["state"] = SimpleNamespace(SCB=held.SCB)  # where PEFT's DoRA looks for the scales
        vars(module)["forward"] = partial(held_linear, module)
    if stacks := [module for module, own_name in matrices.values() if own_name != "weight"]:
        multiply_held(stacks)
    return QuantisedWeights(sha256(place) if kept is not None and place else write_tensors(place, tensors), fault)


def to_card(weight: Any, device: torch.device) -> None:
    """Move a weight in place, with what belongs to it where it is held in fewer bits."""
    weight.data = weight.data.to(device)
    if (state := getattr(weight, "quant_state", None)) is not None:
        state.to(device)
    if getattr(weight, "SCB", None) is not None:
        weight.SCB, weight.CB = weight.SCB.to(device), weight.data


def _own(weight: Tensor, device: torch.device, narrow: torch.dtype | None) -> Tensor:
    """Return a layer's own weight on the device in fp32, first rounded to the dtype it is quantised from."""
    there = weight.to(device)
    return (there if narrow is None else there.to(narrow)).float()


def layers_of(model: Any) -> Iterator[tuple[str, nn.Linear]]:
    """Yield (name, layer) of the linear layers that are quantised: all but the output layer."""
    output = model.get_output_embeddings()
    for name, module in model.named_modules():
        if type(module) is nn.Linear and module is not output:
            yield name, module


def matrices_of(model: Any) -> Iterator[tuple[str, Any, str]]:
    """Yield (name, module, name within it) of the weights that are quantised: a linear layer's has the layer's name."""
    yield from ((name, module, "weight") for name, module in layers_of(model))
    yield from stacks_of(model)


def held_weights(model: Any) -> Iterator[Any]:
    """Yield the weights that are quantised by now."""
    weights = (getattr(module, own) for _, module, own in matrices_of(model))
    return (weight for weight in weights if not weight.is_floating_point())


def _parts(weight: Tensor, form: PackedWeights, library: Any) -> dict[str, Tensor]:
    """Return a quantised weight as named tensors."""
    if form.kind == "int8":
        peaks = torch.linalg.vector_norm(weight, torch.inf, dim=1).clamp_min(1e-12)
        return {"data": (weight * (127.0 / peaks)[:, None]).round_().to(torch.int8), "scales": peaks}
    if on_card(weight) and weight.numel() > _MOST:
        text = f"a stack of experts has {weight.numel():,} numbers, and bitsandbytes' kernels count {_MOST:,}"
        raise Refusal("package_conflict", text, "leave train.frozen out; then start afresh with --run DIR")
    try:
        packed, state = library.functional.quantize_4bit(
            _in_blocks(weight), blocksize=BLOCK, compress_statistics=form.double, quant_type=form.kind
        )
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        text = f"bitsandbytes {library.__version__} does not quantise in blocks of {BLOCK} on this device: {error_message(error)}"
        raise Refusal("package_conflict", text, _NEWER) from error
    return {"data": packed, **state.as_dict(packed=True)}


def _in_blocks(weight: Tensor) -> Tensor:
    """View the weight as rows of one block where its own rows are no multiple of a block: the numbers and blocks are the same.

    bitsandbytes' CPU kernels (0.50) widen such rows wrongly, without an error.
    """
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


def _parts_of(tensors: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    return {key.rpartition(":")[2]: tensor for key, tensor in tensors.items() if key.rpartition(":")[0] == name}


def _place(folder: Path, form: PackedWeights, dtype: torch.dtype, version: str) -> Path | None:
    """Return the path where these quantised weights are cached, beside the token cache; None where there is no home."""
    cache = cache_folder(os.environ)
    if cache is None:
        return None
    files = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in weight_files(folder)]
    key = hashlib.sha256(repr((files, form.kind, form.double, str(dtype), version)).encode()).hexdigest()
    return cache / "quantised" / f"{key[:32]}.safetensors"


def _open_cached(place: Path, layers: Iterable[str]) -> Callable[[str], dict[str, Tensor]] | None:
    """Open cached weights; return a function that reads a layer's tensors, None where the file is not whole or of other layers."""
    try:
        file: Any = safe_open(place, "pt")
        names = list(file.keys())
    except Exception:  # noqa: BLE001  (missing, torn or not ours: it is made again)
        return None
    if {key.rpartition(":")[0] for key in names} != set(layers):
        return None
    by_layer: dict[str, list[str]] = {}
    for key in names:
        by_layer.setdefault(key.rpartition(":")[0], []).append(key)
    return lambda name: {key.rpartition(":")[2]: file.get_tensor(key) for key in by_layer[name]}


def _fault(name: str, module: Any, weight: Tensor, kind: str, dtype: torch.dtype) -> str:
    """Describe how one layer differs from its own weight beyond the rounding of its format; empty where it does not.

    Beside the two it takes what a product takes of a weight.
    """
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
            norm = own.norm().clamp_min(1e-30)
            gap = float(ours.sub_(own).norm() / norm)
            del ours
            if not gap <= FORMATS[kind].apart * (1 if what == "weight" else 2):
                return (
                    f"the {what} of {name} in {kind} is {gap:.2f} of its norm off its 16-bit one (up to {FORMATS[kind].apart:.2f} is usual)"
                )
    return ""
