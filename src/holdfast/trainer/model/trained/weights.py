"""A model's own weights: all of them, or those of some layers. What is trained is fp32, or bf16; the rest stays as it is held."""

from __future__ import annotations

import re
from typing import Any

from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from holdfast.base.files import Json
from holdfast.base_model.folder import ModelFacts
from holdfast.base_model.types import has_towers, is_tower
from holdfast.config.config import Config
from holdfast.planning.memory.trained_size import names_tower
from holdfast.run.artifact import Artifact
from holdfast.trainer.common.decoder import text_decoder
from holdfast.trainer.common.refuse import Refusal
from holdfast.trainer.model.frozen.halves import narrow_trained
from holdfast.trainer.model.trained.adapters import widen_trained
from holdfast.trainer.protocol.step_hooks import StepHooks


class OwnWeights:
    """The weights that `adapter.layers` names, or all; of towers beside a language model those that are named. Raises Refusal for none.

    mixed: products are in 16 bits. cut: a piece of the weights is taken and widened later.
    """

    prefix: Tensor | None = None

    def __init__(self, base: nn.Module, config: Config, facts: ModelFacts, mixed: bool, cut: bool = False) -> None:
        self.model = base
        chosen = _chosen(base, config)
        for parameter in base.parameters():
            parameter.requires_grad_(False)
        for one in chosen.values():
            one.requires_grad_(one.is_floating_point())
        if config.train.weights == "bf16":
            narrow_trained(base, mixed)
        else:
            widen_trained(base, values=not cut)
        base.train()
        prefix = f"{base.base_model_prefix}."
        self.tensors: dict[str, Tensor] = {_in_file(name, facts, prefix): one for name, one in sorted(chosen.items())}
        self.form = Artifact("model", _config(facts.config, config.train.weights), partial=not set(facts.shapes) <= set(self.tensors))
        self.step_hooks = StepHooks()


def _chosen(base: Any, config: Config) -> dict[str, Tensor]:
    wanted = config.adapter.layers if config.adapter.kind.frozen else None
    alone = has_towers(base.config.to_dict()) and (wanted is None or isinstance(wanted, int) or not names_tower(wanted))
    parameters = {name: one for name, one in base.named_parameters() if not (alone and is_tower(name))}
    if not config.adapter.kind.frozen:
        return parameters
    inside = {id(module) for module in text_decoder(base).modules()}
    blocks = [name for name, one in base.named_modules() if isinstance(one, GradientCheckpointingLayer) and id(one) in inside]
    if isinstance(wanted, int):
        if wanted > len(blocks):
            text = f"adapter.layers is {wanted}, the model has {len(blocks)} layers"
            raise Refusal("launch_misconfigured", text, "give fewer, or adapter.type: full; then start afresh with --run DIR")
        names = blocks[-wanted:]
        return {name: one for name, one in parameters.items() if any(name.startswith(f"{block}.") for block in names)}
    if isinstance(wanted, str):
        return _some({name: one for name, one in parameters.items() if re.fullmatch(wanted, name)}, wanted, parameters)
    return _some({name: one for name, one in parameters.items() if _is_named(name, wanted or [])}, wanted, parameters)


def _is_named(name: str, wanted: list[str]) -> bool:
    """Return whether one of the wanted names is the parameter's, its module's, or a part of its path."""
    return any(f".{one}." in f".{name}." for one in wanted)


def _some(found: dict[str, Tensor], wanted: object, parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    if not found:
        first = ", ".join(list(parameters)[:3])
        text = f"adapter.layers is {wanted!r}, and no weight of the model has such a name"
        raise Refusal("launch_misconfigured", text, f"its weights are named like {first}")
    return found


def _in_file(name: str, facts: ModelFacts, prefix: str) -> str:
    """Return the name a weight has in the model's own files."""
    short = name.removeprefix(prefix)
    if name in facts.shapes or short in facts.shapes or not isinstance(facts.config.get("text_config"), dict):
        return short if name not in facts.shapes and short in facts.shapes else name
    words = name.split(".")
    for begin in range(1, len(words) - 1):  # older files of wrapped models name the way to the language half differently
        end = "." + ".".join(words[begin:])
        found = [one for one in facts.shapes if f".{one}".endswith(end) and is_tower(one) == is_tower(name)]
        if found:
            return found[0] if len(found) == 1 else name
    return name


def _config(config: Json, weights: str) -> Json:
    """Return the model's config for weights that are now stored in fp32 or bf16."""
    kept = {name: value for name, value in config.items() if name not in ("torch_dtype", "quantization_config")}
    return kept | {"dtype": "float32" if weights == "fp32" else "bfloat16"}
