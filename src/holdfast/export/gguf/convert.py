"""Write base + adapter as one GGUF file, or the adapter alone, by the package gguf. One tensor is in memory at a time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.base.errors import BLOCKED, USAGE, Stop
from holdfast.base.versions import __version__, install
from holdfast.data.tokens.codec import Codec
from holdfast.export.delta import HEAD, read_delta
from holdfast.export.endings import end_tokens, pad_token
from holdfast.export.gguf.families import Family, family_of, metadata, rope_factors
from holdfast.export.gguf.vocabulary import vocabulary
from holdfast.export.merge import merged_tensors, tied_embedding
from holdfast.export.subject import Subject
from holdfast.export.tensors import Floats, PendingTensor, StoredTensor, stretches, widen

OWN_TYPES = ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0")  # what the package gguf quantises; the others need llama-quantize
_FILE_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q8_0": 7, "q5_0": 8, "q5_1": 9, "bf16": 32}
_ROUTER, _EXPERT = "ffn_gate_inp.weight", re.compile(r"\.experts\.(\d+)\.")
_MOST_HALF = 6e4  # of 65,504: what an adapter adds has to fit, too
_NO_GGUF = ("exporting to GGUF needs the package gguf, which is not installed", install("ship"))


def need_gguf() -> Any:
    """Import and return the package gguf. Raises Stop(2) without it."""
    try:
        import gguf
    except ImportError:
        raise Stop(USAGE, *_NO_GGUF) from None
    return gguf


def sixteen(subject: Subject) -> str:
    """Choose the 16-bit type of a model: f16, which keeps eight times the digits of bf16, unless a value is too large for it.

    A merge rounded to bf16 loses most of what a short run has learned: its changes are below half a unit of the last place.
    """
    held = subject.model_tensors.values()
    return "bf16" if any(one.stored.dtype == "BF16" and _largest(one) > _MOST_HALF for one in held) else "f16"


def _largest(held: StoredTensor) -> float:
    """Return the power of two of the largest exponent in a bf16 tensor, from its bits, without widening it."""
    largest = 0
    for first, last in stretches(held.stored.shape):
        words = (held.raw(first, last) if held.stored.shape else held.raw()).view("<u2")
        largest = max(largest, int((words & 0x7FFF).max(initial=0)))
    return float(widen(np.array([largest], "<u2").view(np.uint8), "BF16")[0])


@dataclass(frozen=True)
class NamedTensor:
    """A tensor under llama.cpp's name: its type there, its shape, and its values once they are asked for."""

    name: str
    kind: str
    shape: tuple[int, ...]
    values: Callable[[], Floats]


def write_gguf(subject: Subject, codec: Codec, file: Path, kind: str, adapted: bool = True) -> None:
    """Write the merged model, or the base alone where `adapted` is False. kind: of matrices, f32, f16, bf16 or one of OWN_TYPES."""
    gguf = need_gguf()
    family = family_of(subject.model)
    writer = _writer(gguf, file, family, subject.name)
    writer.add_file_type(_FILE_TYPES[kind])
    metadata(family, writer)
    ends, pad = end_tokens(codec, subject.facts), pad_token(codec, subject.facts)
    vocabulary(codec, int(family.config["vocab_size"]), ends, pad, writer)
    _write(gguf, writer, [*_tensors(gguf, subject, family, kind, adapted)])


def _writer(gguf: Any, file: Path, family: Family, name: str) -> Any:
    writer = gguf.GGUFWriter(file, family.arch)
    writer.add_name(name)
    writer.add_string("general.made_by", f"holdfast {__version__}")
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    return writer


def _tensors(gguf: Any, subject: Subject, family: Family, kind: str, adapted: bool) -> Iterator[NamedTensor]:
    names = gguf.get_tensor_name_map(_arch(gguf, family), family.layers)
    coming, delta = merged_tensors(subject, adapted, wide=True)
    factors, otherwise = rope_factors(family), sixteen(subject)  # which reads every weight: once, not for each
    if factors is not None:
        yield NamedTensor("rope_freqs.weight", "f32", factors.shape, lambda: factors)
    for own, tensors in _stacked(coming).items():
        if own == HEAD and family.arch.startswith("gemma") and not delta.untied:
            continue  # llama.cpp takes the embedding
        name = names.get_name(own, try_suffixes=(".weight", ".bias"))
        if name is None:
            raise Stop(BLOCKED, f"{own} has no place in llama.cpp's {family.arch}", "use llama.cpp's own: --llama-cpp DIR")
        each = tensors[0].shape
        shape = each if tensors[0].name == own else (len(tensors), *each)
        stored = kind if len(shape) > 1 and not name.endswith(_ROUTER) else "f32"
        yield NamedTensor(name, _fitting(gguf, stored, shape, otherwise), shape, _values(tensors, family, shape))


def _stacked(coming: list[PendingTensor]) -> dict[str, list[PendingTensor]]:
    """Return tensors by name, those of a layer's experts, which a file has apart, in the order of their numbers under one name."""
    found: dict[str, list[tuple[int, PendingTensor]]] = {}
    for tensor in coming:
        expert = _EXPERT.search(tensor.name)
        own = _EXPERT.sub(".experts.", tensor.name)
        found.setdefault(own, []).append((int(expert[1]) if expert else 0, tensor))
    return {own: [tensor for _, tensor in sorted(parts, key=lambda part: part[0])] for own, parts in found.items()}


def expected_tensors(subject: Subject) -> Iterator[NamedTensor]:
    """Yield every tensor that a file of base + adapter should have, with its values in fp32."""
    yield from _tensors(need_gguf(), subject, family_of(subject.model), "f32", adapted=True)


def _values(tensors: list[PendingTensor], family: Family, shape: tuple[int, ...]) -> Callable[[], Floats]:
    def computed() -> Floats:
        parts = [widen(np.ascontiguousarray(part), tensor.dtype) for tensor in tensors for part in tensor.write()]
        values: Floats = np.concatenate(parts).reshape(shape)
        turned: Floats = family.turned(tensors[0].name, values)
        return turned

    return computed


def _fitting(gguf: Any, kind: str, shape: tuple[int, ...], otherwise: str) -> str:
    """Return `kind` where a row is a whole number of its blocks; else `otherwise`, which has 16 bits."""
    block = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind.upper()]][0]
    return kind if shape and shape[-1] % block == 0 else otherwise


def _arch(gguf: Any, family: Family) -> Any:
    return next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == family.arch)


def _write(gguf: Any, writer: Any, tensors: list[NamedTensor]) -> None:
    for tensor in tensors:
        kind = gguf.GGMLQuantizationType[tensor.kind.upper()]
        shape = tensor.shape if kind.name in ("F32", "F16") else gguf.quant_shape_to_byte_shape(tensor.shape, kind)
        element = {"F32": np.float32, "F16": np.float16}.get(kind.name, np.uint8)
        size = int(np.prod(shape)) * np.dtype(element).itemsize
        writer.add_tensor_info(tensor.name, shape, np.dtype(element), size, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in tensors:
        writer.write_tensor_data(np.ascontiguousarray(_as_type(gguf, tensor)))
    writer.close()


def _as_type(gguf: Any, tensor: NamedTensor) -> Any:
    values = tensor.values()
    if tensor.kind == "f32":
        return values
    if tensor.kind == "f16":
        with np.errstate(over="ignore"):
            narrow = values.astype(np.float16)
        if not np.isfinite(narrow).all():
            raise Stop(BLOCKED, f"{tensor.name} has values that fp16 cannot hold", "give the base model in bf16 with --base DIR")
        return narrow
    return gguf.quantize(values, gguf.GGMLQuantizationType[tensor.kind.upper()])


def write_gguf_adapter(subject: Subject, file: Path) -> None:
    """Write the adapter for a base in GGUF, as llama.cpp's --lora takes it. Raises Stop(1) for what has no such form."""
    gguf = need_gguf()
    family = family_of(subject.model)
    delta = read_delta(subject.weights, subject.config, subject.facts.shapes, tied_embedding(subject))
    beyond = [name for name, change in delta.changes.items() if change.beyond_lora]
    if beyond:
        text = f"llama.cpp's adapters are plain LoRA on linear layers; this one has more ({beyond[0]})"
        raise Stop(BLOCKED, text, "export it --to gguf: merged, it is a model like any other")
    scales = {round(change.scale * len(change.down), 6) for change in delta.changes.values() if change.down is not None}
    names = gguf.get_tensor_name_map(_arch(gguf, family), family.layers)
    writer = _writer(gguf, file, family, subject.name)
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string("adapter.type", "lora")
    alpha = max(scales)
    writer.add_float32("adapter.lora.alpha", alpha)
    tensors = []
    for module, change in delta.changes.items():
        name = names.get_name(module, try_suffixes=(".weight",))
        if name is None or change.down is None or change.up is None:
            raise Stop(BLOCKED, f"{module} has no place in llama.cpp's {family.arch}", "export it --to gguf")
        down, up = change.down, family.turned(module, change.up)
        # llama.cpp scales all by alpha / rank: what else a module is scaled by goes into B
        more = np.float32(change.scale * len(down) / alpha)
        tensors += [
            NamedTensor(f"{name}.lora_a", "f32", down.shape, lambda values=down: values),  # type: ignore[misc]
            NamedTensor(f"{name}.lora_b", "f32", up.shape, lambda values=up, more=more: values * more),  # type: ignore[misc]
        ]
    _write(gguf, writer, tensors)
