"""What stands in, in a process that only traces, for what a fake tensor cannot follow: weights in files, addresses, modules that move.

Nothing here is used where something is trained.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from holdfast.core.facts.model_folder import ModelFacts
from holdfast.core.files import Json
from holdfast.trainer.model import load as loading


def stand_in(model: ModelFacts) -> None:
    """From here on the base model is made of its config alone."""
    follow_fakes()
    own = transformers.AutoModelForCausalLM.from_config
    loading.AutoModelForCausalLM = SimpleNamespace(from_pretrained=_Unfilled(model.config), from_config=own)  # type: ignore[attr-defined]
    loading.read_model = lambda model, _known=model: _known  # type: ignore[attr-defined,misc]


def follow_fakes() -> None:
    """From here on modules of fake tensors can be moved, and whose memory a fake is a part of is known."""
    nn.Module._apply = _apply  # type: ignore[method-assign]
    FakeTensor.data_ptr = _place  # type: ignore[method-assign,assignment]


class _Unfilled:
    """In place of from_pretrained: the model that a config describes, with weights that have no values."""

    def __init__(self, config: Json) -> None:
        self.config = config

    def __call__(self, _folder: Path, dtype: torch.dtype, attn_implementation: str, **loaded: Any) -> Any:
        about = transformers.AutoConfig.for_model(**self.config)
        model = transformers.AutoModelForCausalLM.from_config(about, dtype=dtype, attn_implementation=attn_implementation)
        there = loaded.get("device_map", {}).get("")
        found: Json = {"mismatched_keys": set(), "missing_keys": set(), "unexpected_keys": set()}
        return (model if there is None else model.to(there)), found


def _apply(module: nn.Module, change: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
    """Module.to and .float for fakes, whose tensors cannot be swapped: new parameters, and what was tied stays tied."""
    made: dict[int, tuple[nn.Parameter, nn.Parameter]] = {}
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                if id(parameter) not in made:
                    made[id(parameter)] = (parameter, nn.Parameter(change(parameter.detach()), requires_grad=parameter.requires_grad))
                part._parameters[name] = made[id(parameter)][1]
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = change(buffer)
    return module


def _place(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata) + int(tensor.storage_offset()) * tensor.element_size()
