"""How many numbers a run trains, by the kind of its adapter and the shapes in the model's files. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from holdfast.base_model.folder import ModelFacts
from holdfast.base_model.packed import packed_as
from holdfast.base_model.parts import by_part, has_experts, is_router, part_of, why_no_lora
from holdfast.base_model.types import WRAPPED, adapts_stacks, has_towers, is_tower, loads_as
from holdfast.config.adapter_kinds import Matrix
from holdfast.config.config import Config
from holdfast.run.plan import Plan

_LORA = ("LORA", "ADALORA")
_APART = re.compile(r"experts\.\d+\.")
_FUSED, _DOWN = ("gate_proj", "up_proj", "w1", "w3"), ("down_proj", "w2")
_FUSES_GATES, _GATE_OR_UP = ("minimax_m3_vl", "minimax_m3_vl_text"), re.compile(r"\.(gate|up)_proj$")
_APART_AS_LOADED = {  # by model_type, the layers that transformers makes of one in a file
    "molmo2": {
        "att_proj": ("q_proj", "k_proj", "v_proj"),
        "ff_proj": ("up_proj", "gate_proj"),
        "attn_out": ("o_proj",),
        "ff_out": ("down_proj",),
    },
    "hrm_text": {"gqkv_proj": ("gate_proj", "q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")},
}
_RENAMED = {"hrm_text": (".attn.", ".self_attn.")}  # by model_type, words of a file's names, and as transformers loads them
_TOPS = ("model", "transformer")  # of a loaded model, which some files leave out
_HOMES = ("", "model.", "language_model.", "model.language_model.", "language_model.model.")  # of a language half's layers, here or there
_OF_A_LAYER = re.compile(r"\.(\d+)\.")


def trainable_parameters(config: Config, model: ModelFacts) -> int:
    """Return the number of trained parameters, those of modules that are saved whole included."""
    return sum(trained_sizes(config, model).values())


def trained_by_part(config: Config, model: ModelFacts) -> dict[str, int]:
    """Return the trained parameters by part of the model: attention, mlp, experts, router, embeddings, towers, other."""
    return by_part(trained_sizes(config, model), is_wrapped(model))


def weights_by_part(model: ModelFacts) -> dict[str, int]:
    """Return the parameters in the model's files, by part."""
    return by_part({name: math.prod(shape) for name, shape in model.held.items()}, is_wrapped(model))


def reached_by_part(config: Config, model: ModelFacts) -> dict[str, int]:
    """Return the parameters in the model's files that are trained or carry an adapter, by part."""
    found = trained_sizes(config, model)

    def reached(name: str, shape: tuple[int, ...]) -> bool:
        modules = _as_loaded(model, name.removesuffix(".weight"), shape)
        return name in found or any(f"{one}.adapter" in found for one in modules) or any(f".{name}".endswith(f".{one}") for one in found)

    return by_part({name: math.prod(shape) for name, shape in model.held.items() if reached(name, shape)}, is_wrapped(model))


def what_learns(plan: Plan, config: Config, model: ModelFacts) -> str:
    """Describe in a line each part's share of what is trained and of all weights, then the parts, and layers, that stay frozen."""
    sizes = {part: one.parameters for part, one in plan.learns.items() if one.parameters}
    trained, weights = max(1, sum(sizes.values())), max(1, sum(plan.weights_by_part.values()))

    def share(part: str) -> str:
        return f"{plan.weights_by_part.get(part, 0) / weights:.0%} of the weights"

    learns = [f"{part} {size / trained:.0%} ({share(part)})" for part, size in sizes.items()]
    still = [f"{part} ({share(part)})" for part in plan.weights_by_part if part not in sizes]
    asked, without = config.adapter.targets != "all-linear", _without_lora(config, model)
    still += [] if asked else without
    told = f"what learns: {', '.join(learns) or 'nothing'}" + (f"; as it was stays: {', '.join(still)}" if still else "")
    return told + (f"; named in adapter.targets, and may learn nothing: {', '.join(without)}" if asked and without else "")


def _without_lora(config: Config, model: ModelFacts) -> list[str]:
    """List the layers on which LoRA would not learn or ship, which all-linear leaves out, or else those of them that are named; and why."""
    targets, left = config.adapter.targets, dict[str, set[str]]()
    for name in model.linear() if config.adapter.kind.peft in _LORA else ():
        aside = is_wrapped(model) and is_tower(name)
        if not aside and (why := why_no_lora(model.config, name)) and (targets == "all-linear" or _is_named(name, targets)):
            left.setdefault(why, set()).add(name.rpartition(".")[2])
    return [f"{', '.join(sorted(names))} ({why})" for why, names in left.items()]


def is_wrapped(model: ModelFacts) -> bool:
    """Return whether it is a model of text and images, or text and sound: an adapter sits on its language half alone."""
    return loads_as(model.config) == WRAPPED or has_towers(model.config)


def packed_by_us(config: Config, model: ModelFacts) -> bool:
    """True if frozen weights are to be held in 4 or 8 bits, and do not come so."""
    return config.train.frozen_format.width is not None and packed_as(model.config) is None


def trained_sizes(config: Config, model: ModelFacts) -> dict[str, int]:
    """Return the trained parameters by the name of the weight or module they belong to."""
    adapter, kind = config.adapter, config.adapter.kind
    if kind.own_weights:
        return {name: math.prod(model.shapes[name]) for name in chosen_weights(config, model)}
    hidden = model.number("hidden_size", "n_embd", default=768)
    found = {
        name: math.prod(shape) for name, shape in model.shapes.items() if any(f".{one}." in f".{name}." for one in adapter.modules_to_save)
    }
    found |= {one: adapter.r * _sides(model, one) for one in adapter.target_parameters}
    found["embed_tokens of some"] = len(adapter.trainable_token_indices) * hidden + adapter.virtual_tokens * hidden * kind.prefix
    found["score"] = hidden * config.train.objective_kind.scores
    if kind.count is not None:
        targets = list(kind.sits_on) if kind.sits_on and adapter.targets == "all-linear" else adapter.targets
        beside = targets == "all-linear" and packed_by_us(config, model)
        for name, matrix in _adapted(model, targets).items():
            if beside and part_of(name) == "experts":  # in stacks of fewer bits
                continue
            if (held := _as_stacked(name, matrix, model, kind.peft)) is not None:
                found[f"{name}.adapter"] = kind.count(adapter.file_rank, held)
    return {name: size for name, size in found.items() if size}


def _as_stacked(name: str, matrix: Matrix, model: ModelFacts, peft: str) -> Matrix | None:
    """Return the matrix that sets an adapter's size where a file has each expert apart and transformers 5 stacks them; None: none.

    A stack is no layer. In some types PEFT puts LoRA on it all the same, with twice the rank where gate and up are one weight, and then
    passes over layers of the same names beside the experts.
    """
    last, of_expert = name.rpartition(".")[2], part_of(name) == "experts"
    if not any(_APART.search(one) for one in model.shapes):
        return matrix
    if peft != "LORA" or not adapts_stacks(model.config.get("model_type")):
        return None if of_expert else matrix
    if last not in (*_FUSED, *_DOWN):
        return matrix
    if not of_expert:
        return None
    return Matrix(matrix.name, matrix.rows * (2 if last in _FUSED else 1), matrix.columns)


def _sides(model: ModelFacts, parameter: str) -> int:
    """Return rows plus columns of the weights of a parameter's module; a file may have those of each expert apart."""
    of_module = [shape for name, shape in model.shapes.items() if f".{parameter.rpartition('.')[0]}." in f".{name}" and len(shape) > 1]
    return sum(math.prod(shape[:-2]) * sum(shape[-2:]) for shape in of_module)


def chosen_weights(config: Config, model: ModelFacts) -> list[str]:
    """List the weights in the model's files that `adapter.layers` selects, as far as names tell, or all; towers where they are named."""
    layers = config.adapter.layers if config.adapter.kind.frozen else ".*"
    alone = is_wrapped(model) and (isinstance(layers, int) or not names_tower(layers or []))
    names = [name for name in model.held if not (alone and is_tower(name))]
    if isinstance(layers, int):
        numbers = sorted({int(found[1]) for name in names if (found := _OF_A_LAYER.search(name))})[-layers:]
        return [name for name in names if (found := _OF_A_LAYER.search(name)) and int(found[1]) in numbers]
    if isinstance(layers, str):
        return [name for name in names if re.fullmatch(layers, name)]
    return [name for name in names if any(f".{one}." in f".{name}." for one in layers or [])]


def adapted(model: ModelFacts, targets: str | list[str]) -> list[Matrix]:
    """List the weights an adapter sits on: those named or matched, or every matrix but embeddings and the output layer."""
    return list(_adapted(model, targets).values())


def _adapted(model: ModelFacts, targets: str | list[str]) -> dict[str, Matrix]:
    """Return the weights an adapter sits on, by module."""

    def learns(name: str) -> bool:
        return not (alone and is_tower(name)) and (asked or not is_router(name))

    alone, asked = is_wrapped(model) and not names_tower(targets), names_router(targets) or not has_experts(model.shapes)
    if targets == "all-linear":
        taken = {name: one for name, one in model.linear().items() if learns(name) and not why_no_lora(model.config, name)}
        return _matrices(_fused(model, taken))
    modules = _fused(model, {name: shape for name, shape in model.matrices().items() if learns(name)})
    if "lm_head" not in modules and (tied := [shape for name, shape in modules.items() if name.endswith("embed_tokens")]):
        modules["lm_head"] = tied[0]
    return _matrices({name: shape for name, shape in modules.items() if _is_named(name, targets)})


def _as_loaded(model: ModelFacts, name: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Return the modules that transformers makes of a matrix in a file: it loads some of them as one layer, and some apart."""
    kind = model.config.get("model_type")
    name = name.replace(*_RENAMED.get(str(kind), ("", "")))
    home, dot, last = name.rpartition(".")
    if kind in _FUSES_GATES:
        return {_GATE_OR_UP.sub(".gate_up_proj", name): shape}
    parts = _APART_AS_LOADED.get(str(kind), {}).get(last)
    if parts is None or len(shape) != 2:
        return {name: shape}
    keys = model.number("num_key_value_heads", default=1) * model.number("head_dim", default=1)
    rows = [shape[0] - 2 * keys, keys, keys] if len(parts) == 3 else [shape[0] // len(parts)] * len(parts)
    return {f"{home}{dot}{part}": (count, shape[1]) for part, count in zip(parts, rows, strict=True)}


def _fused(model: ModelFacts, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a file's layers as transformers loads them."""
    found: dict[str, tuple[int, ...]] = {}
    for name, file_shape in shapes.items():
        for module, shape in _as_loaded(model, name, file_shape).items():
            found[module] = (found[module][0] + shape[0], *shape[1:]) if module in found else shape
    return found


def names_tower(targets: str | list[str]) -> bool:
    """Return whether the targets name a part of a tower by more than a last name that a text layer has, too."""
    return any(is_tower(name) for name in ([targets] if isinstance(targets, str) else targets))


def names_router(targets: str | list[str]) -> bool:
    """Return whether the targets name the experts' router; a pattern that only happens to match it does not."""
    words = [targets] if isinstance(targets, str) else targets
    return any(is_router(word) for one in words for word in re.split(r"[^a-zA-Z0-9_]+", one))


def _matrices(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Matrix]:
    return {name: Matrix(name.rpartition(".")[2], *shape) for name, shape in shapes.items()}


def _is_named(name: str, targets: str | list[str]) -> bool:
    """Return whether `targets` select a module of a file, read as PEFT reads them: a text is a pattern, else a list of ends of names.

    They name modules as transformers loads them, before whose layers a file may have other words.
    """
    home, layers, rest = name.partition("layers.")
    names = [name, *(f"{top}.{name}" for top in _TOPS), *(f"{one}{layers}{rest}" for one in _HOMES if layers and home in _HOMES)]
    if isinstance(targets, str):
        return any(re.fullmatch(targets, one) for one in names)
    return any(f".{one}".endswith(f".{target}") for one in names for target in targets)
