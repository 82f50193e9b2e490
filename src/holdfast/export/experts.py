"""Where an adapter of stacked experts sits in the base's files, which have each expert apart, or the stack as it is. Pure.

As PEFT's ParamWrapper has it: lora_A is [experts * r, in], expert by expert; lora_B is [out, r * experts], the expert changing fastest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from holdfast.base_model.parts import STACKS
from holdfast.base_model.types import is_tower
from holdfast.export.tensors import Floats

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
_APART = re.compile(r"\.experts\.(\d+)\.(\w+)\.weight$")
_STACKED = re.compile(rf"\.experts\.({'|'.join(STACKS)})$")
_ROLES = {"gate_proj": "gate", "w1": "gate", "up_proj": "up", "w3": "up", "down_proj": "down", "w2": "down"}


class Piece(NamedTuple):
    """What is added to one tensor: scale * up @ down, of each expert of a stack; flipped: the stack is stored [experts, in, out]."""

    name: str
    scale: float
    down: Floats
    up: Floats
    flipped: bool = False


def is_of_experts(module: str) -> bool:
    return module.removesuffix(".base_layer").removesuffix(".base_layer").endswith(".experts")


def pieces(
    module: str, down: Floats, up: Floats, base: Mapping[str, tuple[int, ...]], scale_of: Callable[[str, int], float]
) -> list[Piece]:
    """Compute what an adapter's matrices at a module add to tensors of these names and shapes; empty where it fits none.

    scale_of: of the module's name with the parameter's, and the rank of one expert.
    """
    layer = _LAYER.search(module)
    own = {name: shape for name, shape in base.items() if _layer_of(name) == (layer[1] if layer else None) and not is_tower(name)}
    return [*_apart(module, down, up, own, scale_of)] or [*_stacked(module, down, up, own, scale_of)]


def _layer_of(name: str) -> str | None:
    found = _LAYER.search(name)
    return found[1] if found else None


def _cut(down: Floats, up: Floats, experts: int) -> tuple[Floats, Floats]:
    """Split matrices by expert: [experts, r, in] and [experts, out, r]."""
    return down.reshape(experts, -1, down.shape[1]), up.reshape(len(up), -1, experts).transpose(2, 0, 1)


def _apart(
    module: str, down: Floats, up: Floats, own: Mapping[str, tuple[int, ...]], scale_of: Callable[[str, int], float]
) -> Iterator[Piece]:
    named = {(int(found[1]), _ROLES[found[2]]): name for name in own if (found := _APART.search(name)) and found[2] in _ROLES}
    experts = 1 + max((number for number, _ in named), default=-1)
    if not experts or len(named) != 3 * experts or len(down) % experts or down.shape[0] != up.shape[1]:
        return
    inner, width = own[named[0, "gate"]]
    made_for, rank = (down.shape[1], len(up)), len(down) // experts
    if made_for not in ((width, 2 * inner), (inner, width)):
        return
    first, second = _cut(down, up, experts)
    parameter = "gate_up_proj" if made_for == (width, 2 * inner) else "down_proj"
    scale = scale_of(f"{module.removesuffix('.base_layer')}.{parameter}", rank)
    for number in range(experts):
        if parameter == "down_proj":
            yield Piece(named[number, "down"], scale, first[number], second[number])
        else:
            yield Piece(named[number, "gate"], scale, first[number], second[number][:inner])
            yield Piece(named[number, "up"], scale, first[number], second[number][inner:])


def _stacked(
    module: str, down: Floats, up: Floats, own: Mapping[str, tuple[int, ...]], scale_of: Callable[[str, int], float]
) -> Iterator[Piece]:
    made_for = (len(up), down.shape[1])
    found = [name for name, shape in own.items() if _STACKED.search(name) and len(shape) == 3 and made_for in (shape[1:], shape[:0:-1])]
    if len(found) != 1 or len(down) % own[found[0]][0]:
        return
    experts, rows, columns = own[found[0]]
    first, second = _cut(down, up, experts)
    scale = scale_of(f"{module.removesuffix('.base_layer')}.{found[0].rpartition('.')[2]}", len(down) // experts)
    yield Piece(found[0], scale, first, second, made_for != (rows, columns))
