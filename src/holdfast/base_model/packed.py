"""Models whose files hold weights in few bits: what they are packed as, and the shapes they have unpacked. Loads no weight.

Those of bitsandbytes are trained on as they come. FP8 with a scale for each block and MXFP4 are widened to 16 bits when they are loaded,
which transformers does on any device: from there on the model is one of 16 bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal

import orjson

from holdfast.base.files import Json

_STATE = ".quant_state.bitsandbytes__"  # between a weight's name and its kind: what it was packed from, as JSON
_LONGEST = 4096  # bytes of that
_BESIDE = (".SCB", ".weight_format")  # of weights in 8 bits, beside them
_ABOUT = ("quantization_config", "compression_config", "quantization")  # in config.json: transformers', older compressed-tensors', MLX's
_PACKED_NAMES = (".qweight", ".weight_packed")  # of GPTQ, AWQ and compressed-tensors, also where config.json says nothing
_SCALE = "_scale_inv"  # behind a weight's name: the factors of its blocks
_OF_INPUTS = ".activation_scale"  # beside it, of products in 8 bits, which are not computed here
_BLOCKS, _BLOCK_SCALES = "_blocks", "_scales"  # of MXFP4
_PAIRS = 16  # bytes of a block of MXFP4, two numbers each


@dataclass(frozen=True)
class PackedWeights:
    """How weights lie in a model's files. double: the scales of their blocks are quantised, too."""

    kind: Literal["nf4", "fp4", "int8"]
    double: bool = False


def widened_from(config: Json) -> Literal["fp8", "mxfp4"] | None:
    """Return the format from which a model with this config.json is widened to 16 bits as it is loaded; None where it is not."""
    about = config.get("quantization_config")
    if not isinstance(about, dict) or about.get("fmt", "e4m3") != "e4m3":
        return None
    return {"fp8": "fp8", "mxfp4": "mxfp4"}.get(str(about.get("quant_method")))  # type: ignore[return-value]


def about_packing(config: Json, names: Iterable[str]) -> Json | None:
    """Return the settings of weights in few bits in a model's files, whoever wrote them. names: of its tensors."""
    about = next((config[key] for key in _ABOUT if isinstance(config.get(key), dict)), None)
    told = next((name for name in names if name.endswith(_PACKED_NAMES)), None)
    return about if about is not None or told is None else {"quant_method": f"what has tensors like {told}"}


def widened_shapes(kind: str, tensors: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a file's weights as they are once widened, without the scales beside them. Raises ValueError.

    tensors: what lies in it, each with its type and shape.
    """
    if kind == "mxfp4":
        shapes = {name: tensor.shape for name, tensor in tensors.items() if not name.endswith((_BLOCKS, _BLOCK_SCALES))}
        return shapes | dict(_of_blocks(name, tensors) for name in tensors if name.endswith(_BLOCKS))
    beside = (_SCALE, _OF_INPUTS)
    shapes = {name: tensor.shape for name, tensor in tensors.items() if not name.endswith(beside)}
    for name in shapes:
        if tensors[name].dtype.startswith("F8_"):
            _check_grid(name, tensors)
    return shapes


def _check_grid(name: str, tensors: Mapping[str, Any]) -> None:
    """Refuse weights whose blocks are cut off at an edge: transformers takes a block's size from the numbers of weights and scales."""
    if name + _SCALE not in tensors:
        raise ValueError(f"{name} is in FP8 and has no scales beside it ({name}{_SCALE})")
    shape, scales = tensors[name].shape, tensors[name + _SCALE].shape
    grid = scales if len(scales) > 1 else (1, 1)
    if len(grid) != len(shape) or any(count < 1 or size % count for size, count in zip(shape, grid, strict=True)):
        raise ValueError(f"{name} of {list(shape)} is not cut evenly into the blocks of its scales of {list(scales)}")


def _of_blocks(name: str, tensors: Mapping[str, Any]) -> tuple[str, tuple[int, ...]]:
    """Return the name and the shape of a stack of experts' weights: [experts, in, out], in the file [experts, out, blocks, bytes]."""
    own, shape = name.removesuffix(_BLOCKS), tensors[name].shape
    if len(shape) != 4 or shape[3] != _PAIRS or own + _BLOCK_SCALES not in tensors:
        raise ValueError(f"{name} of {list(shape)} is no weight in MXFP4 with its scales")
    return own, (shape[0], shape[2] * 2 * _PAIRS, shape[1])


def packed_as(config: Json) -> PackedWeights | None:
    """Return how bitsandbytes packed the weights of a model with this config.json; None where it did not, or in an unknown way."""
    about = config.get("quantization_config")
    if not isinstance(about, dict) or about.get("quant_method", "bitsandbytes") != "bitsandbytes":
        return None
    if about.get("load_in_4bit") or about.get("_load_in_4bit"):
        kind = about.get("bnb_4bit_quant_type", "fp4")
        storage = about.get("bnb_4bit_quant_storage", "uint8")
        return PackedWeights(kind, bool(about.get("bnb_4bit_use_double_quant"))) if kind in ("nf4", "fp4") and storage == "uint8" else None
    return PackedWeights("int8") if about.get("load_in_8bit") or about.get("_load_in_8bit") else None


def unpacked_shapes(handle: BinaryIO, tensors: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a file's weights as they were before they were packed, without the tensors beside them. Raises ValueError.

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
