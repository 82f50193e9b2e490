"""How many numbers a run trains, by the kind of its adapter and the shapes in the model's files. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from holdfast.base_model.folder import ModelFacts
from holdfast.config.adapter_kinds import Matrix
from holdfast.config.config import Config

_OF_A_LAYER = re.compile(r"\.(\d+)\.")


def trainable_parameters(config: Config, model: ModelFacts) -> int:
    """What is trained; of modules that are saved whole, too."""
    adapter, kind = config.adapter, config.adapter.kind
    if not kind.frozen:
        return model.parameters()
    if kind.own_weights:
        return sum(math.prod(model.shapes[name]) for name in chosen_weights(adapter.layers, model))
    hidden = model.number("hidden_size", "n_embd", default=768)
    saved = [shape for name, shape in model.shapes.items() if any(f".{one}." in f".{name}." for one in adapter.modules_to_save)]
    whole = sum(map(math.prod, saved)) + (hidden if config.train.objective_kind.scores else 0)
    whole += len(adapter.trainable_token_indices) * hidden + adapter.r * sum(_sides(model, one) for one in adapter.target_parameters)
    whole += adapter.virtual_tokens * hidden if kind.prefix else 0
    if kind.count is None:
        return whole
    targets = list(kind.sits_on) if kind.sits_on and adapter.targets == "all-linear" else adapter.targets
    return whole + sum(kind.count(adapter.file_rank, matrix) for matrix in adapted(model, targets))


def _sides(model: ModelFacts, parameter: str) -> int:
    """Rows and columns of the weights of a module that a parameter is of, added; a file may have those of each expert apart."""
    of_module = [shape for name, shape in model.shapes.items() if f".{parameter.rpartition('.')[0]}." in f".{name}" and len(shape) > 1]
    return sum(math.prod(shape[:-2]) * sum(shape[-2:]) for shape in of_module)


def chosen_weights(layers: int | str | list[str] | None, model: ModelFacts) -> list[str]:
    """The weights in the model's files that `adapter.layers` means, as far as their names tell."""
    if isinstance(layers, int):
        numbers = sorted({int(found[1]) for name in model.shapes if (found := _OF_A_LAYER.search(name))})[-layers:]
        return [name for name in model.shapes if (found := _OF_A_LAYER.search(name)) and int(found[1]) in numbers]
    if isinstance(layers, str):
        return [name for name in model.shapes if re.fullmatch(layers, name)]
    return [name for name in model.shapes if any(f".{one}." in f".{name}." for one in layers or [])]


def adapted(model: ModelFacts, targets: str | list[str]) -> list[Matrix]:
    """The weights an adapter sits on: those that are named or match, or every matrix but embeddings and the output layer."""
    if targets == "all-linear":
        return _matrices(model.linear())
    modules = model.matrices()
    if "lm_head" not in modules and (tied := [shape for name, shape in modules.items() if name.endswith("embed_tokens")]):
        modules["lm_head"] = tied[0]
    return _matrices({name: shape for name, shape in modules.items() if _is_named(name, targets)})


def _matrices(shapes: Mapping[str, tuple[int, ...]]) -> list[Matrix]:
    return [Matrix(name.rpartition(".")[2], *shape) for name, shape in shapes.items()]


def _is_named(name: str, targets: str | list[str]) -> bool:
    """As PEFT reads a text, which is a pattern, or a list of names."""
    if isinstance(targets, str):
        return re.fullmatch(targets, name) is not None
    return name.rpartition(".")[2] in targets or name in targets
