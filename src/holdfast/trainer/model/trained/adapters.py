"""Adapters: PEFT makes, holds and names them; what is trained is fp32. Their random values follow from the seed."""

from __future__ import annotations

from typing import Any

import torch
from peft import AdaLoraConfig, IA3Config, LoraConfig, PeftConfig, PromptTuningConfig, get_peft_model
from peft.utils import (
    TRANSFORMERS_MODELS_TO_IA3_FEEDFORWARD_MODULES_MAPPING,
    TRANSFORMERS_MODELS_TO_IA3_TARGET_MODULES_MAPPING,
    get_peft_model_state_dict,
)
from torch import Tensor, nn

from holdfast.base.files import Json
from holdfast.base_model.folder import hub_name
from holdfast.config.adapter import Adapter
from holdfast.config.config import Config
from holdfast.run.artifact import Artifact
from holdfast.trainer.libraries import without_bitsandbytes
from holdfast.trainer.model.trained.budget import RankBudget
from holdfast.trainer.model.trained.kept import KeptStart, start_from_weights
from holdfast.trainer.model.trained.scalar_head import add_scalar_head
from holdfast.trainer.model.trained.tokens import token_numbers, use_lean_tokens
from holdfast.trainer.refuse import Refusal
from holdfast.trainer.step_hooks import StepHooks

_FROM_WEIGHTS = ("pissa", "olora")
_INIT: dict[str, Any] = {"default": True, "gaussian": "gaussian", "orthogonal": "orthogonal", "pissa": True, "olora": True}
_SHORT = 220


class PeftAdapter:
    """An adapter on a frozen base model. Raises Refusal where it cannot be put on this one."""

    def __init__(self, base: nn.Module, config: Config, steps: int, device: torch.device) -> None:
        adapter = config.adapter
        if adapter.type == "dora":
            _refuse_cut_rows(base)
        if config.train.objective == "reward":
            add_scalar_head(base, config.train.seed)
        self.model = add_adapter(base, config, steps)
        widen_trained(self.model)
        for parameter in self.model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.to(device)
        use_lean_tokens(self.model)
        rates = {}
        if adapter.lr_ratio is not None:
            rates = {name: adapter.lr_ratio for name in artifact_tensors(self.model) if ".lora_B." in name or "lora_embedding_B" in name}
        self.step_hooks = StepHooks(rates)
        if adapter.init in _FROM_WEIGHTS:
            self.step_hooks = KeptStart(start_from_weights(self.model, adapter.init, adapter.r, config.train.seed), rates)
        elif adapter.type == "adalora":
            self.step_hooks = RankBudget(self.model)
        self.tensors = artifact_tensors(self.model)
        self.form = Artifact("adapter", adapter_config(self.model, config.model))
        self.prefix: Tensor | None = self.tensors["prompt_embeddings"] if adapter.type == "prompt" else None


def _refuse_cut_rows(base: nn.Module) -> None:
    """Raise Refusal where PEFT's DoRA would widen a weight whose rows are no multiple of a block, which it does not know how to."""
    for name, module in base.named_modules():
        shape = getattr(getattr(module, "weight", None), "of_shape", None)
        if shape is not None and tuple(module.weight.quant_state.shape) != tuple(shape):
            text = f"adapter.type dora on 4-bit weights needs rows of a multiple of 64 numbers; {name} has {shape[1]}"
            raise Refusal("launch_misconfigured", text, "take adapter.type: lora, or train.frozen: half; then start afresh with --run DIR")


def add_adapter(model: nn.Module, config: Config, steps: int = 1) -> nn.Module:
    """Put a fresh adapter on the model; its random values follow from the seed. Trained weights are fp32.

    Raises Refusal where adapter.targets names nothing that PEFT can put an adapter on.
    """
    adapter = config.adapter
    torch.manual_seed(config.train.seed)
    wanted = _peft_config(adapter, model, steps)
    _refuse_tokens_twice(model, adapter)
    _refuse_unknown_parameters(model, adapter)
    if adapter.trainable_token_indices:
        wanted.trainable_token_indices = token_numbers(config, model)
    if config.train.objective == "reward":
        wanted.task_type = "SEQ_CLS"  # with which PEFT trains and saves the head, too
    try:
        with without_bitsandbytes():
            wrapped: nn.Module = get_peft_model(model, wanted, autocast_adapter_dtype=True)
    except ValueError as error:
        able = sorted({name.rpartition(".")[2] for name, module in model.named_modules() if isinstance(module, (nn.Linear, nn.Embedding))})
        named = f"adapter.targets is {adapter.targets!r}" + (
            f", adapter.modules_to_save {adapter.modules_to_save!r}" if adapter.modules_to_save else ""
        )
        text = " ".join(f"{named}: {error}".split())
        text = text if len(text) <= _SHORT else text[:_SHORT] + " ..."
        raise Refusal("launch_misconfigured", text, f"this model has {', '.join(able)}; or write all-linear") from error
    _refuse_unsaved(wrapped, adapter)
    return wrapped.train()


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
    name = next(name for name, module in model.named_modules() if module is table)
    if adapter.trainable_token_indices and any(f".{name}".endswith(f".{one}") for one in adapter.modules_to_save):
        text = f"adapter.modules_to_save names {name.rpartition('.')[2]}, of which trainable_token_indices trains some rows"
        raise Refusal("launch_misconfigured", text, "leave trainable_token_indices out: modules_to_save trains every token's embedding")


def _refuse_unsaved(model: nn.Module, adapter: Adapter) -> None:
    """Raise Refusal for names in modules_to_save that are no module: PEFT passes them over without a word."""
    names = {name for name, _ in model.named_modules()}
    missing = [one for one in adapter.modules_to_save if not any(name.endswith(f"{one}.modules_to_save") for name in names)]
    if missing:
        ends = sorted({name.rpartition(".")[2] for name in names if name and "lora" not in name and not name.rpartition(".")[2].isdigit()})
        text = f"adapter.modules_to_save names {', '.join(missing)}, and this model has no module of that name"
        raise Refusal("launch_misconfigured", text, f"its modules: {', '.join(ends)[:_SHORT]}")


def _peft_config(adapter: Adapter, model: Any, steps: int) -> PeftConfig:
    kind = adapter.type
    if kind == "prompt":
        config = model.config.get_text_config()
        return PromptTuningConfig(
            task_type="CAUSAL_LM",
            num_virtual_tokens=adapter.virtual_tokens,
            token_dim=config.hidden_size,
            num_layers=config.num_hidden_layers,
            num_attention_heads=config.num_attention_heads,
        )
    saved = list(adapter.modules_to_save) or None
    if kind == "ia3":
        targets, forward = _ia3_targets(adapter.targets, model)
        return IA3Config(task_type="CAUSAL_LM", target_modules=targets, feedforward_modules=forward, modules_to_save=saved)
    if kind == "adalora":
        warm, last = steps // 10, steps * 3 // 10
        return AdaLoraConfig(
            task_type="CAUSAL_LM",
            init_r=adapter.r,
            target_r=adapter.target_r or max(1, adapter.r // 2),
            lora_alpha=adapter.alpha,
            lora_dropout=adapter.dropout,
            target_modules=adapter.targets,
            modules_to_save=saved,
            tinit=warm,
            tfinal=last,
            deltaT=max(1, steps // 100),
            total_step=max(steps, warm + last + 1),
        )
    twice = 2 if adapter.init in _FROM_WEIGHTS else 1  # with what it began with as a second half
    scale = (2**0.5 if kind == "rslora" else 2) if twice == 2 else 1
    return LoraConfig(
        task_type="CAUSAL_LM",
        r=adapter.r * twice,
        lora_alpha=adapter.alpha * scale,
        lora_dropout=adapter.dropout,
        target_modules=adapter.targets,
        modules_to_save=saved,
        use_rslora=kind == "rslora",
        use_dora=kind == "dora",
        init_lora_weights=_INIT[adapter.init],
        target_parameters=list(adapter.target_parameters) or None,
    )


def _ia3_targets(targets: str | list[str], model: Any) -> tuple[list[str] | str, list[str]]:
    """(modules whose outputs are scaled, those of them whose inputs are): PEFT's own choice for a family, else keys, values, and down."""
    kind = model.config.get_text_config().model_type
    forward = list(TRANSFORMERS_MODELS_TO_IA3_FEEDFORWARD_MODULES_MAPPING.get(kind, ["down_proj"]))
    if targets == "all-linear":
        return list(TRANSFORMERS_MODELS_TO_IA3_TARGET_MODULES_MAPPING.get(kind, ["k_proj", "v_proj", "down_proj"])), forward
    names = targets if isinstance(targets, list) else []
    return targets, [name for name in forward if name in names]


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
    """The adapter's weights under the names PEFT saves them with; the tensors are the live parameters, trained in place."""
    parameters = {parameter.data_ptr(): parameter for parameter in model.parameters() if parameter.requires_grad}
    if getattr(model, "active_peft_config", None) is not None and model.active_peft_config.is_prompt_learning:  # type: ignore[union-attr]
        (prompt,) = parameters.values()
        return {"prompt_embeddings": prompt}
    saved = get_peft_model_state_dict(model, save_embedding_layers=False)  # an adapter of embeddings needs no copy of them
    return {name: parameters[tensor.data_ptr()] for name, tensor in sorted(saved.items())}


def adapter_config(model: Any, base: str) -> Json:
    """What PEFT writes as adapter_config.json, with sets in order, so that the same run writes the same file."""
    name, revision = hub_name(base)
    values = model.peft_config["default"].to_dict() | {"base_model_name_or_path": name, "revision": revision, "inference_mode": True}
    return {name: _plain(value) for name, value in sorted(values.items())}


def _plain(value: Any) -> Any:
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    return getattr(value, "value", value)
