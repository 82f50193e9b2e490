"""Models whose files hold weights in few bits: as what bitsandbytes wrote them, and the shapes they have unpacked. Loads no weight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal

import orjson

from holdfast.core.files import Json

_STATE = ".quant_state.bitsandbytes__"  # between a weight's name and its kind: what it was packed from, as JSON
_LONGEST = 4096  # bytes of that
_BESIDE = (".SCB", ".weight_format")  # of weights in 8 bits, beside them


@dataclass(frozen=True)
class Packed:
    """How weights lie in a model's files. double: the scales of their blocks are quantised, too."""

    kind: Literal["nf4", "fp4", "int8"]
    double: bool = False


def packed_as(config: Json) -> Packed | None:
    """What bitsandbytes made of the weights of a model with this config.json; None where it did not, or in a way that is not known."""
    about = config.get("quantization_config")
    if not isinstance(about, dict) or about.get("quant_method", "bitsandbytes") != "bitsandbytes":
        return None
    if about.get("load_in_4bit") or about.get("_load_in_4bit"):
        kind = about.get("bnb_4bit_quant_type", "fp4")
        storage = about.get("bnb_4bit_quant_storage", "uint8")
        return Packed(kind, bool(about.get("bnb_4bit_use_double_quant"))) if kind in ("nf4", "fp4") and storage == "uint8" else None
    return Packed("int8") if about.get("load_in_8bit") or about.get("_load_in_8bit") else None


def unpacked_shapes(handle: BinaryIO, tensors: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The shapes of a file's weights as they were before they were packed, without what lies beside them. Raises ValueError.

    tensors: what lies in it, each with its shape, and where its bytes begin and end.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    states = {name: name.split(_STATE)[0] for name in tensors if _STATE in name}
    for name, of in states.items():
        begin, end = tensors[name].begin, tensors[name].end
        if end - begin > _LONGEST:
            raise ValueError(f"{name} has {end - begin:,} bytes")
        handle.seek(begin)
        about = orjson.loads(handle.read(end - begin))
        shape = about.get("shape") if isinstance(about, dict) else None
        if not isinstance(shape, list) or len(shape) != 2 or any(type(number) is not int or number < 1 for number in shape):
            raise ValueError(f"{name} names no shape")
        shapes[of] = tuple(shape)
    beside = tuple(f"{of}." for of in shapes)
    for name, tensor in tensors.items():
        if name not in shapes and not name.startswith(beside or ("\0",)) and not name.endswith(_BESIDE):
            shapes[name] = tensor.shape
    return shapes
