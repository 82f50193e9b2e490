"""What stands in, in a process that only traces, for what a fake tensor cannot follow: weights in files, addresses, modules that move.

Nothing here is used where something is trained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import transformers
from peft.tuners.lora import dora
from peft.utils.integrations import dequantize_module_weight
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from holdfast.base.files import Json
from holdfast.base_model.folder import ModelFacts
from holdfast.base_model.forms import with_floats
from holdfast.base_model.packed import PackedWeights
from holdfast.trainer.common.bitsandbytes_package import bitsandbytes
from holdfast.trainer.common.libraries import module_if_there
from holdfast.trainer.model import load as loading
from holdfast.trainer.model.frozen import quantised
from holdfast.trainer.model.frozen.experts import multiply_held
from holdfast.trainer.model.frozen.halves import held_linear, widened
from holdfast.trainer.model.frozen.quantised import QuantisedWeights
from holdfast.trainer.model.layers import lora
from holdfast.trainer.model.layers.mixed import JoinedMatrix
from holdfast.trainer.model.trained import choose
from holdfast.trainer.optim import optimizer
from holdfast.trainer.optim.host_moments import PLACES
from holdfast.trainer.traced.ledger import MAPPED, Ledger, Log

_WIDEN = loading.widen_constants
_OUTER_BLOCK = 256  # scales that share one, where scales are quantised, too


def stand_in(model: ModelFacts, ledger: Ledger, in_files: bool = False, cut: bool = False) -> None:
    """Build the base model from its config alone for the rest of this process.

    in_files: its linear layers lie in files, which take nothing of the device; the log has a mark where the model was made so.
    cut: as of one of several ranks that share its layers.
    """
    follow_fakes()
    auto = loading.loader(model)
    made = SimpleNamespace(
        from_pretrained=_UnfilledModel(model.config, auto, ledger.log if in_files else None), from_config=auto.from_config
    )
    loading.loader = lambda _facts: made  # type: ignore[assignment]
    loading.read_model = choose.read_model = lambda model, _known=model: _known  # type: ignore[attr-defined,misc]
    vars(lora)["JoinedMatrix"] = partial(_joined, cut)
    vars(loading)["hold_quantised"] = hold_unfilled
    vars(loading)["widen_constants"] = partial(_widen_uncounted, ledger)
    dora.dequantize_module_weight = _dequantise
    vars(optimizer)["HostMoments"] = _Away
    if moe := module_if_there("transformers.integrations.moe"):
        vars(moe)["_grouped_mm"] = _as_one_expert


def follow_fakes() -> None:
    """Let modules of fake tensors be moved, and track whose memory a fake is a part of, for the rest of this process."""
    nn.Module._apply = _apply  # type: ignore[method-assign]
    FakeTensor.data_ptr = _place  # type: ignore[method-assign,assignment]


class _UnfilledModel:
    """In place of from_pretrained: the model that a config describes, with weights that have no values."""

    def __init__(self, config: Json, auto: Any, log: Log | None) -> None:
        self.config, self.auto, self.log = config, auto, log

    def __call__(self, _folder: Path, dtype: torch.dtype, attn_implementation: str, **loaded: Any) -> Any:
        about = transformers.AutoConfig.for_model(**with_floats(self.config))
        model = self.auto.from_config(about, dtype=dtype, attn_implementation=attn_implementation)
        if self.log is not None:
            for _, module, own in list(quantised.matrices_of(model)):
                weight = getattr(module, own)
                setattr(module, own, nn.Parameter(torch.empty(1, dtype=weight.dtype).expand(weight.shape), requires_grad=False))
            self.log.mark(MAPPED)
        there = loaded.get("device_map", {}).get("")
        found: Json = {"mismatched_keys": set(), "missing_keys": set(), "unexpected_keys": set()}
        return (model if there is None else model.to(there)), found


def _joined(shared: bool, layers: list[Any], half: torch.dtype, cut: bool, comes_and_goes: bool) -> JoinedMatrix:
    return JoinedMatrix(layers, half, cut or shared, comes_and_goes)


def _widen_uncounted(ledger: Ledger, model: Any, *given: Any) -> None:
    """Widen constants as a start does. The weights of its second model take no memory: of that one the constants alone are counted."""
    ledger.counting = False
    try:
        _WIDEN(model, *given)
    finally:
        ledger.counting = True
    for buffer in model.buffers():
        ledger.count(buffer)


class _Away:
    """In place of HostMoments: what of it is on the card. `host` takes no memory, whatever its shape."""

    def __init__(self, count: int, size: int, stretch: int, _device: torch.device) -> None:
        self.host = [torch.empty(1).expand(size) for _ in range(count)]
        self._places = [[torch.empty(stretch) for _ in range(count)] for _ in range(PLACES)]

    def visit(self, stretches: Sequence[tuple[int, int]]) -> Iterator[list[Tensor]]:
        for start, end in stretches:
            yield [part[: end - start] for part in self._places[0]]


def hold_unfilled(
    model: Any,
    _folder: Path,
    form: PackedWeights,
    dtype: torch.dtype,
    _device: torch.device,
    _home: torch.device,
    _narrow: torch.dtype | None = None,
    given: dict[str, Tensor] | None = None,
) -> QuantisedWeights:
    """Do what hold_quantised does to a model, without values: as many bytes, with as high a peak on the way."""
    library, seen = bitsandbytes(f"train.frozen {form.kind}"), set()
    stacks = []
    for _, module, own in list(quantised.matrices_of(model)):
        weight = getattr(module, own)
        if given is not None and weight.ndim > 2:
            continue  # as it comes
        shape, first = weight.shape, weight.shape not in seen
        seen.add(shape)
        wide = [torch.empty(shape, dtype=torch.float32)] if first or given is None else []
        if first or (given is None and form.kind == "int8"):
            wide.append(torch.empty(shape, dtype=torch.float32))  # the widened one, that the first of its shape is held against
        elif given is None:
            wide.append(torch.empty(shape, dtype=weight.dtype))  # as the file has it
        wide = wide[:1]
        held = _in_fewer_bits(shape, form.kind, form.double, library)
        setattr(module, own, held)
        wide.clear()
        if len(shape) > 2:
            held.computed = dtype
            stacks.append(module)
        else:
            vars(module)["forward"] = partial(held_linear, module)
    if stacks:
        multiply_held(stacks)
    return QuantisedWeights("", "")


def _in_fewer_bits(shape: torch.Size, kind: str, double: bool, library: Any) -> Any:
    """Make a stand-in for a parameter of bitsandbytes', whose classes take no fakes."""
    count = shape.numel()
    if kind == "int8":
        made: Any = nn.Parameter(torch.empty(shape.numel() // shape[-1], shape[-1], dtype=torch.int8), requires_grad=False)
        made.SCB, made.of_shape = torch.empty(len(made)), shape
        return made
    made = nn.Parameter(torch.empty((count + 1) // 2, 1, dtype=torch.uint8), requires_grad=False)
    blocks = -(-count // quantised.BLOCK)
    code, absmax = torch.empty(16), torch.empty(blocks, dtype=torch.uint8 if double else torch.float32)
    of_scales = {}
    if double:
        outer, codes = torch.empty(-(-blocks // _OUTER_BLOCK)), torch.empty(256)
        nested = library.functional.QuantState(absmax=outer, code=codes, blocksize=_OUTER_BLOCK, dtype=torch.float32)
        of_scales = {"offset": torch.empty(()), "state2": nested}
    about: Any = {"code": code, "blocksize": quantised.BLOCK, "quant_type": kind, "dtype": torch.float32}
    made.quant_state = library.functional.QuantState(absmax=absmax, shape=shape, **about, **of_scales)
    made.of_shape = shape
    return made


def _as_one_expert(x: Tensor, weights: Tensor, offs: Tensor) -> Tensor:
    """Return products of tokens [tokens, in], sorted by expert, with weights [experts, in, out]; torch knows their shapes in bf16 alone.

    Those with the first expert take, keep and multiply as many numbers.
    """
    return x.to(weights.dtype) @ weights[0]


def _dequantise(module: Any) -> Any:
    """Widen a module's weight to fp32, in place of PEFT's function, which knows weights in fewer bits by their class."""
    weight = module.weight
    fewer = hasattr(weight, "quant_state") or hasattr(weight, "SCB")
    return widened(weight, torch.float32) if fewer else dequantize_module_weight(module)


def _apply(module: nn.Module, change: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
    """Do Module.to and .float for fakes, whose tensors cannot be swapped: new parameters, and what was tied stays tied."""
    made: dict[int, tuple[nn.Parameter, nn.Parameter]] = {}
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                if id(parameter) not in made:
                    with torch.no_grad():
                        moved = change(parameter)
                    same = moved is parameter
                    made[id(parameter)] = (parameter, parameter if same else nn.Parameter(moved, requires_grad=parameter.requires_grad))
                part._parameters[name] = made[id(parameter)][1]
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = change(buffer)
    return module


def _place(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata) + int(tensor.storage_offset()) * tensor.element_size()
