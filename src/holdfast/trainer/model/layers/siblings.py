"""LoRA layers that are given the same input, computed together: the first that is asked computes the outputs of all."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import local
from typing import Any, TypeVar

from torch import Tensor, nn

from holdfast.base_model.forms import SIBLINGS
from holdfast.trainer.model.frozen.halves import held_linear
from holdfast.trainer.model.frozen.offloaded_layers import Near, everywhere
from holdfast.trainer.model.layers.dropout import StatelessDropout

AnyGroup = TypeVar("AnyGroup", bound="SiblingGroup")


class SiblingGroup:
    """LoRA layers with one input. Each thread has its own outputs (`trainer/parts/side_by_side.py`)."""

    def __init__(self, layers: list[Any]) -> None:
        self.layers = layers
        self._own = local()
        for at, layer in enumerate(layers):
            layer.forward = partial(self.forward, at)

    def forward(self, at: int, x: Tensor) -> Tensor:
        """Return the output of one layer. The first layer that is asked computes those of all."""
        layer = self.layers[at]
        if layer.disable_adapters or layer.merged:
            return held_linear(layer.base_layer, x)
        given, outs = getattr(self._own, "made", (None, {}))
        if given is not x or at not in outs:
            outs = dict(enumerate(self.computed(x, [self.trained(each) for each in range(len(self.layers))])))
        out: Tensor = outs.pop(at)
        self._own.made = (x, outs) if outs else (None, outs)
        return out

    @property
    def waiting(self) -> int:
        """How many outputs were computed that nobody has asked for yet."""
        return len(getattr(self._own, "made", (None, {}))[1])

    def computed(self, x: Tensor, trained: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, ...]:
        """Compute the outputs of all layers, given A and B of each."""
        raise NotImplementedError

    def forget(self, *_: Any) -> None:
        """Keep no output that nobody asked for; called when the parent's forward pass ends or fails."""
        self._own.made = (None, {})

    def trained(self, at: int) -> tuple[Tensor, Tensor]:
        """Return A and B of a layer."""
        layer = self.layers[at]
        (name,) = layer.lora_A
        return layer.lora_A[name].weight, layer.lora_B[name].weight


def group_siblings(
    model: nn.Module,
    layers: list[Any],
    alike: Callable[[list[Any]], bool],
    make: Callable[[list[Any]], AnyGroup],
    near: Near = everywhere,
) -> list[AnyGroup]:
    """Make a group of the layers that have one input, where they are `alike`, then one of each other layer alone.

    alike: whether layers with one input can be computed together. make: builds a group. near: inside, its weights are where it computes.
    """
    left: dict[int, Any] = {id(layer): layer for layer in layers}
    groups: list[AnyGroup] = []
    for parent in model.modules():
        for names in SIBLINGS:
            found = [layer for name in names if id(layer := getattr(parent, name, None)) in left]
            if len(found) > 1 and alike(found):
                with near(*found):
                    groups.append(make([left.pop(id(layer)) for layer in found]))
                parent.register_forward_hook(groups[-1].forget, always_call=True)
    for layer in left.values():
        with near(layer):
            groups.append(make([layer]))
    return groups


def same_shapes(layers: list[Any]) -> bool:
    """Return whether A of each has one shape and all have the same factor."""
    return len({(layer.lora_A[key].weight.shape, layer.scaling[key]) for layer in layers for key in layer.lora_A}) == 1


def dropouts_of(layers: list[Any]) -> list[Any]:
    """Return the dropout module of each layer, None where it drops nothing by a mask of ours."""
    found = [layer.lora_dropout[key] for layer in layers for key in layer.lora_A]
    return [one if isinstance(one, StatelessDropout) else None for one in found]
