"""Adapters: PEFT makes, holds and names them; what is trained is fp32. Their random values follow from the seed."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any

import torch
from peft import get_peft_model
from peft.tuners.trainable_tokens import TrainableTokensLayer
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils import get_peft_model_state_dict
from torch import Tensor, nn

from holdfast.base.files import Json
from holdfast.base_model.folder import named_by_peft
from holdfast.base_model.parts import has_experts, is_router, why_no_lora
from holdfast.base_model.types import for_auto_peft, has_towers, is_tower
from holdfast.config.adapter import Adapter
from holdfast.config.adapter_kinds import FROM_WEIGHTS
from holdfast.config.config import Config
from holdfast.planning.memory.trained_size import names_router, names_tower
from holdfast.run.artifact import Artifact
from holdfast.trainer.common.decoder import text_decoder
from holdfast.trainer.common.libraries import without_bitsandbytes
from holdfast.trainer.common.refuse import Refusal
from holdfast.trainer.model.frozen.experts import stacks_of
from holdfast.trainer.model.trained.kept import KeptStart, start_exactly, start_from_weights
from holdfast.trainer.model.trained.loaded_names import RENAMES, loadable_names
from holdfast.trainer.model.trained.peft_kinds import PEFT_KINDS
from holdfast.trainer.model.trained.scalar_head import add_scalar_head
from holdfast.trainer.model.trained.tokens import token_numbers, use_lean_tokens
from holdfast.trainer.protocol.step_hooks import StepHooks

_SHORT = 220


class PeftAdapter:
    """An adapter on a frozen base model. Raises Refusal where it cannot be put on this one."""

    def __init__(self, base: nn.Module, config: Config, steps: int, device: torch.device, once: bool = False, exact: bool = True) -> None:
        adapter, kind = config.adapter, PEFT_KINDS[config.adapter.type]
        kind.refuse(base)
        if config.train.objective_kind.scores:
            add_scalar_head(base, config.train.seed)
        self.model = add_adapter(base, config, steps, once, exact)
        widen_trained(self.model)
        for parameter in self.model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.to(device)
        if exact:
            start_exactly(self.model, adapter.init, config.train.seed)
        use_lean_tokens(self.model)
        rates = {}
        if adapter.lr_ratio is not None:
            rates = {name: adapter.lr_ratio for name in artifact_tensors(self.model) if ".lora_B." in name or "lora_embedding_B" in name}
        self.step_hooks = StepHooks(rates)
        if adapter.init in FROM_WEIGHTS:
            self.step_hooks = KeptStart(start_from_weights(self.model, adapter.init, adapter.r, config.train.seed), rates)
        elif kind.step_hooks is not None:
            self.step_hooks = kind.step_hooks(self.model)
        self.tensors = artifact_tensors(self.model)
        self.form = Artifact("adapter", adapter_config(self.model, config.model))
        self.prefix: Tensor | None = self.tensors["prompt_embeddings"] if adapter.kind.prefix else None


def add_adapter(model: nn.Module, config: Config, steps: int = 1, once: bool = False, exact: bool = True) -> nn.Module:
    """Put a fresh adapter on the model; its random values follow from the seed. Trained weights are fp32.

    once: all-linear is what it was in run folders without the setting `all_learn`. exact: as the setting `exact_start`.

    Raises Refusal where adapter.targets names what PEFT can put no adapter on.
    """
    adapter = config.adapter
    torch.manual_seed(config.train.seed)
    wanted: Any = PEFT_KINDS[adapter.type].config(config, model, steps, exact)
    text, settings = text_decoder(model), getattr(model, "config", None)
    if text is not model and settings is not None and has_towers(settings.to_dict()) and not names_tower(adapter.targets):
        wanted.exclude_modules = _beside(model, text)
    if not names_router(adapter.targets):
        _leave_routers_out(model, wanted)
    _leave_held_stacks_out(model, wanted, adapter)
    if adapter.targets == "all-linear":
        about = settings.to_dict() if settings is not None else {}
        _leave_out(wanted, [name for name, _ in model.named_modules() if why_no_lora(about, name, once)])
        _leave_out(wanted, _numbered(model), inside=False)
    _refuse_tokens_twice(model, adapter)
    _refuse_unknown_parameters(model, adapter)
    if adapter.trainable_token_indices:
        wanted.trainable_token_indices = token_numbers(config, model)
    if config.train.objective_kind.scores:
        wanted.task_type = "SEQ_CLS"  # with which PEFT trains and saves the head, too
    try:
        with without_bitsandbytes():
            wrapped: Any = get_peft_model(model, wanted, autocast_adapter_dtype=True)
    except ValueError as error:
        able = _layer_names(model)
        named = f"adapter.targets is {adapter.targets!r}" + (
            f", adapter.modules_to_save {adapter.modules_to_save!r}" if adapter.modules_to_save else ""
        )
        text = " ".join(f"{named}: {error}".split())
        text = text if len(text) <= _SHORT else text[:_SHORT] + " ..."
        raise Refusal("launch_misconfigured", text, f"this model has {', '.join(able)}; or write all-linear") from error
    if exact:
        _refuse_unmatched(wrapped, adapter)
    _refuse_unsaved(wrapped, adapter)
    _refuse_shared_weights(wrapped, adapter)
    if adapter.targets == "all-linear" and isinstance(found := getattr(wrapped.peft_config["default"], "target_modules", None), set):
        found &= _named_by(wrapped.targeted_module_names)
    trained: nn.Module = wrapped.train()
    return trained


def _layer_names(model: nn.Module) -> list[str]:
    """Return the last parts of the names of layers that LoRA goes on, each once, in order."""
    return sorted({name.rpartition(".")[2] for name, module in model.named_modules() if isinstance(module, (nn.Linear, nn.Embedding))})


def _refuse_unmatched(wrapped: Any, adapter: Adapter) -> None:
    """Raise Refusal where adapter.targets is a list with names of no layer: PEFT trains the others, and says nothing."""
    found = [f".{name}" for name in getattr(wrapped, "targeted_module_names", ())]
    if not found or isinstance(adapter.targets, str):
        return
    missing = [name for name in adapter.targets if not any(one.endswith(f".{name}") for one in found)]
    if not missing:
        return
    there = [name for name in _layer_names(wrapped.get_base_model()) if name not in ("base_layer", "default")]
    able = sorted({*there, *(one.rpartition(".")[2] for one in found)})
    near = [f"{name}: did you mean {close[0]}?" for name in missing if (close := difflib.get_close_matches(name, able, 1))]
    text = f"adapter.targets names {', '.join(missing)}, and this model has no such layer that is trained"
    raise Refusal("launch_misconfigured", text, "; ".join([*near, f"this model has {', '.join(able)}; or write all-linear"]))


def _named_by(modules: Iterable[str]) -> set[str]:
    """Return each end of the modules' names: a name that PEFT found in what is left out would be an adapter of another class's modules."""
    return {end for name in modules for end in (name[at:] for at in range(len(name)) if at == 0 or name[at - 1] == ".")}


def _beside(model: nn.Module, text: nn.Module) -> str | None:
    """Return a pattern of the modules outside the language half, which are left alone; None where there are none.

    Some models have no module that is this half alone: their towers are told by name.
    """
    one = getattr(model.config, "text_config", None) is None
    inside = {id(module) for name, module in text.named_modules() if not (one and is_tower(name))}
    inside.add(id(model.get_output_embeddings()))  # type: ignore[operator]
    own = next(name for name, module in model.named_modules() if module is text)
    names = [name for name, module in model.named_modules() if id(module) not in inside and not f"{own}.".startswith(f"{name}.") and name]
    tops = sorted(name for name in names if not any(name.startswith(f"{other}.") for other in names))
    return "|".join(rf"{re.escape(name)}(\..*)?" for name in tops) or None


def _leave_routers_out(model: nn.Module, wanted: Any) -> None:
    """Take what chooses experts out of what the adapter sits on, which was not asked for.

    PEFT counts it to all linear layers: where it is one, and where it turns names of linear layers of older classes into parameters.
    """
    routers = [name for name, _ in model.named_modules() if is_router(name)]
    if not routers or not has_experts(name for name, _ in model.named_modules()):
        return
    _leave_out(wanted, routers)
    if RENAMES is not None:
        RENAMES.convert_peft_config_for_transformers(wanted, model, None)
    if named := getattr(wanted, "target_parameters", None):
        wanted.target_parameters = {name for name in named if not is_router(name)}


def _leave_held_stacks_out(model: nn.Module, wanted: Any, adapter: Adapter) -> None:
    """Take stacks of experts held in 4 or 8 bits out of what all-linear comes to. Raises Refusal where they are asked for by name."""
    held = {own for _, module, own in stacks_of(model) if not getattr(module, own).is_floating_point()}
    if not held:
        return
    if RENAMES is not None:
        RENAMES.convert_peft_config_for_transformers(wanted, model, None)
    found = {name for name in getattr(wanted, "target_parameters", None) or () if name.rpartition(".")[2] in held}
    if found and (adapter.targets != "all-linear" or adapter.target_parameters):
        text = f"the experts of this model are held in 4 or 8 bits, and the adapter is to change them ({', '.join(sorted(found))})"
        hint = "name layers beside them: adapter.targets: [q_proj, k_proj, v_proj, o_proj]; or leave train.frozen out"
        raise Refusal("launch_misconfigured", text, f"{hint}; then start afresh with --run DIR")
    if found:
        wanted.target_parameters = sorted(set(wanted.target_parameters) - found) or None
        for pattern in (wanted.rank_pattern, wanted.alpha_pattern):
            for name in [name for name in pattern if name.endswith(tuple(held))]:
                del pattern[name]


def _numbered(model: nn.Module) -> list[str]:
    """List the modules of other modules that have a number for a name, where a linear layer has one, too.

    PEFT looks for all linear layers by their last names, and takes layers.0 for what the tower calls mlp.0.
    """
    named = {name: module for name, module in model.named_modules() if name.rpartition(".")[2].isdigit()}
    if not any(isinstance(module, nn.Linear) for module in named.values()):
        return []
    return [name for name, module in named.items() if any(True for _ in module.children())]


def _leave_out(wanted: Any, names: list[str], inside: bool = True) -> None:
    """Add these modules, and what is in them unless `inside` is false, to those that PEFT puts nothing on."""
    pattern = "|".join(re.escape(name) + (r"(\..*)?" if inside else "") for name in names)
    wanted.exclude_modules = "|".join(one for one in (getattr(wanted, "exclude_modules", None), pattern) if one) or None


def _refuse_unknown_parameters(model: nn.Module, adapter: Adapter) -> None:
    """Raise Refusal for names in target_parameters that no weight has: PEFT passes them over with a warning."""
    weights = dict(model.named_parameters())
    if missing := [one for one in adapter.target_parameters if not any(f".{name}".endswith(f".{one}") for name in weights)]:
        text = f"adapter.target_parameters names {', '.join(missing)}, and this model has no weight of that name"
        stacked = sorted({".".join(name.split(".")[-3:]) for name, weight in weights.items() if weight.dim() > 2})
        raise Refusal("launch_misconfigured", text, f"its stacked weights: {', '.join(stacked)[:_SHORT] or 'none'}")


def _refuse_tokens_twice(model: Any, adapter: Adapter) -> None:
    """Raise Refusal where single embeddings are to be trained and all of them, too: PEFT takes one of the two."""
    table = model.get_input_embeddings()
    weight = getattr(table, "weight", None)
    for name, module in model.named_modules():
        tied = module is not table and weight is not None and getattr(module, "weight", None) is weight
        if not adapter.trainable_token_indices or not (tied or module is table):
            continue
        if any(f".{name}".endswith(f".{one}") for one in adapter.modules_to_save):
            shared = ", one weight with the embeddings in this model" if tied else ""
            text = f"adapter.modules_to_save names {name.rpartition('.')[2]}{shared}, of which trainable_token_indices trains some rows"
            hint = "leave trainable_token_indices out: modules_to_save trains every token's embedding"
            if tied:
                hint = "leave modules_to_save out: trainable_token_indices trains these tokens' rows for input and output alike"
            raise Refusal("launch_misconfigured", text, hint)


def _refuse_unsaved(model: nn.Module, adapter: Adapter) -> None:
    """Raise Refusal for names in modules_to_save that are no module: PEFT passes them over without a word."""
    names = {name for name, _ in model.named_modules()}
    missing = [one for one in adapter.modules_to_save if not any(name.endswith(f"{one}.modules_to_save") for name in names)]
    if missing:
        ends = sorted({name.rpartition(".")[2] for name in names if name and "lora" not in name and not name.rpartition(".")[2].isdigit()})
        text = f"adapter.modules_to_save names {', '.join(missing)}, and this model has no module of that name"
        raise Refusal("launch_misconfigured", text, f"its modules: {', '.join(ends)[:_SHORT]}")


def _refuse_shared_weights(wrapped: Any, adapter: Adapter) -> None:
    """Raise Refusal where layers that are one weight would each learn a change of their own: no merged model can hold both."""
    model = wrapped.get_base_model()
    tables = {id(getattr(table, "weight", None)) for table in (model.get_input_embeddings(), model.get_output_embeddings())}
    layers = {
        name: module.get_base_layer()
        for name, module in model.named_modules()
        if isinstance(module, BaseTunerLayer) and not isinstance(module, TrainableTokensLayer)
    }
    first: dict[int, str] = {}
    shared = {}
    for name, layer in layers.items():
        weight = getattr(layer, "weight", None)
        if isinstance(weight, nn.Parameter) and id(weight) not in tables and first.setdefault(id(weight), name) != name:
            shared[name] = first[id(weight)]
    if not shared:
        return
    (second, one), ends = next(iter(shared.items())), {name.rpartition(".")[2] for name in shared}
    text = f"adapter.targets is {adapter.targets!r}: {one} and {second} are one weight in this model ({len(shared)} such pairs),"
    text += " and each would learn a change of its own, which no merged model can hold"
    able = sorted({name.rpartition(".")[2] for name in layers} - ends)
    hint = f"write adapter.targets: [{', '.join(able)}]" if able else "give another model"
    raise Refusal("launch_misconfigured", text, f"{hint}, then start afresh with --run DIR")


def widen_trained(model: nn.Module, values: bool = True) -> None:
    """Give trained weights fp32, and modules that were made to compute with narrower ones their own forward pass again.

    values: False where the weights themselves are widened later, a piece of them.
    """
    for module in model.modules():
        own = [parameter for parameter in module.parameters(recurse=False) if parameter.requires_grad]
        for parameter in own if values else ():
            parameter.data = parameter.data.float()
        if own and type(module) in (nn.Linear, nn.Embedding):
            module.__dict__.pop("forward", None)


def artifact_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the adapter's weights under the names PEFT saves: the live parameters, trained in place."""
    parameters = {parameter.data_ptr(): parameter for parameter in model.parameters() if parameter.requires_grad}
    if getattr(model, "active_peft_config", None) is not None and model.active_peft_config.is_prompt_learning:  # type: ignore[union-attr]
        (prompt,) = parameters.values()
        return {"prompt_embeddings": prompt}
    live = model.state_dict(keep_vars=True)
    saved = get_peft_model_state_dict(model, state_dict=live, save_embedding_layers=False)  # an adapter of embeddings needs no copy of them
    names = loadable_names(model, saved)
    return {names[name]: parameters[saved[name].data_ptr()] for name in sorted(saved, key=lambda name: names[name])}


def adapter_config(model: Any, base: str) -> Json:
    """Return what PEFT writes as adapter_config.json, sets sorted, so that the same run writes the same file."""
    values = model.peft_config["default"].to_dict() | named_by_peft(base) | {"inference_mode": True}
    if any(isinstance(one, BaseTunerLayer) and getattr(one, "fan_in_fan_out", False) for one in model.modules()):
        values["fan_in_fan_out"] = True  # of GPT-2's layers; PEFT leaves what the last one is, which may be the output layer
    plain = {name: _plain(value) for name, value in sorted(values.items())}
    return for_auto_peft(plain, model.get_base_model().config.to_dict())


def _plain(value: Any) -> Any:
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    return getattr(value, "value", value)
