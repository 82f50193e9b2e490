"""Which parts of a built model learn, by what its parameters are. Moves nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from holdfast.base_model.parts import by_part


class PartCounts(NamedTuple):
    """Numbers by part of a model: that are trained; of its own weights; of those of them that learn or carry an adapter."""

    learns: dict[str, int]
    weights: dict[str, int]
    reached: dict[str, int]


def parts_of(model: nn.Module, trained: Mapping[str, Tensor], wrapped: bool) -> PartCounts:
    """Count what learns of a model. trained: what the optimizer moves, by name. A shared weight counts once."""
    moved = {id(tensor) for tensor in trained.values()}
    added = moved if hasattr(model, "peft_config") else set()
    own = {name: one for name, one in model.named_parameters() if id(one) not in added}
    live = [name for name, one in model.named_parameters() if id(one) in moved]  # a file may have other names for them
    reached = moved | {id(one) for module in _carriers(model, [*trained, *live]) for one in _weights_inside(module)}
    return PartCounts(
        by_part({name: one.numel() for name, one in trained.items()}, wrapped),
        by_part({name: _size(one) for name, one in own.items()}, wrapped),
        by_part({name: _size(one) for name, one in own.items() if id(one) in reached}, wrapped),
    )


def _size(weight: Any) -> int:
    """Return how many numbers a weight stands for; in 4 bits two of them lie in a byte."""
    return int(getattr(weight, "of_shape", weight.shape).numel())


def _carriers(model: nn.Module, names: Iterable[str]) -> list[nn.Module]:
    """Return the modules that adapters were put around, the innermost for each name."""
    around = {name: module for name, module in model.named_modules() if hasattr(module, "base_layer") or hasattr(module, "original_module")}
    found = {}
    for name in names:
        words = name.split(".")
        home = next((place for end in range(len(words), 0, -1) if (place := ".".join(words[:end])) in around), None)
        if home is not None:
            found[home] = around[home]
    return [*found.values()]


def _weights_inside(module: Any) -> list[nn.Parameter]:
    """Return the model's own weights inside such a module: all of one saved whole, or one parameter of a stack of experts."""
    inner = getattr(module, "original_module", None)
    if inner is not None:
        return [*inner.parameters()]
    inner = module.base_layer
    while hasattr(inner, "base_layer"):
        inner = inner.base_layer
    one = getattr(module, "parameter_name", None)
    return [getattr(inner, one)] if one else [*inner.parameters(recurse=False)]
