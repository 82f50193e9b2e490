"""What of each adapter kind needs torch: PEFT's config of it, and what it has to do around a step. All else is its record.

The record is in config/adapter_kinds.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from peft import AdaLoraConfig, IA3Config, LoraConfig, PeftConfig, PromptTuningConfig
from peft.utils import TRANSFORMERS_MODELS_TO_IA3_FEEDFORWARD_MODULES_MAPPING, TRANSFORMERS_MODELS_TO_IA3_TARGET_MODULES_MAPPING
from torch import nn

from holdfast.config.adapter import Adapter
from holdfast.config.adapter_kinds import FROM_WEIGHTS
from holdfast.config.config import Config
from holdfast.trainer.common.refuse import Refusal
from holdfast.trainer.model.trained.budget import RankBudget, stages
from holdfast.trainer.protocol.step_hooks import StepHooks

_INIT: dict[str, Any] = {"gaussian": "gaussian", "orthogonal": "orthogonal"}  # others: True


def _anything(_: nn.Module) -> None:
    """Refuse nothing."""


@dataclass(frozen=True)
class PeftKind:
    """config: PEFT's, for an adapter on a model in a run of so many steps, by the setting `exact_start`.

    refuse: raises Refusal for a base model it cannot sit on.
    step_hooks: what it does around a step beside the optimizer, on the wrapped model; None: nothing.
    """

    config: Callable[[Config, Any, int, bool], PeftConfig]
    refuse: Callable[[nn.Module], None] = _anything
    step_hooks: Callable[[nn.Module], StepHooks] | None = None


def _lora(config: Config, _model: Any, _steps: int, exact: bool) -> PeftConfig:
    adapter = config.adapter
    twice = adapter.init in FROM_WEIGHTS
    scale = (2**0.5 if adapter.kind.flag == "use_rslora" else 2) if twice else 1
    return LoraConfig(
        task_type="CAUSAL_LM",
        r=adapter.file_rank,
        lora_alpha=adapter.alpha * scale,
        lora_dropout=adapter.dropout,
        target_modules=adapter.targets,
        modules_to_save=_modules_to_save(adapter),
        use_rslora=adapter.kind.flag == "use_rslora",
        use_dora=adapter.kind.flag == "use_dora",
        init_lora_weights=True if exact and adapter.init == "orthogonal" else _INIT.get(adapter.init, True),
        target_parameters=list(adapter.target_parameters) or None,
    )


def _adalora(config: Config, _model: Any, steps: int, _exact: bool) -> PeftConfig:
    adapter = config.adapter
    return AdaLoraConfig(
        task_type="CAUSAL_LM",
        init_r=adapter.r,
        target_r=adapter.target_r or max(1, adapter.r // 2),
        lora_alpha=adapter.alpha,
        lora_dropout=adapter.dropout,
        target_modules=adapter.targets,
        modules_to_save=_modules_to_save(adapter),
        **stages(steps),
    )


def _prompt(config: Config, model: Any, _steps: int, _exact: bool) -> PeftConfig:
    shape = model.config.get_text_config()
    return PromptTuningConfig(
        task_type="CAUSAL_LM",
        num_virtual_tokens=config.adapter.virtual_tokens,
        token_dim=shape.hidden_size,
        num_layers=shape.num_hidden_layers,
        num_attention_heads=shape.num_attention_heads,
    )


def _ia3(config: Config, model: Any, _steps: int, exact: bool) -> PeftConfig:
    targets, forward = _ia3_targets(config.adapter.targets, model, exact)
    saved = _modules_to_save(config.adapter)
    return IA3Config(task_type="CAUSAL_LM", target_modules=targets, feedforward_modules=forward, modules_to_save=saved)


def _ia3_targets(targets: str | list[str], model: Any, exact: bool) -> tuple[list[str] | str, list[str] | str]:
    """Return (modules to scale, those of them scaled at their inputs): PEFT's choice for a family, else keys, values, down."""
    kind = model.config.get_text_config().model_type
    forward = list(TRANSFORMERS_MODELS_TO_IA3_FEEDFORWARD_MODULES_MAPPING.get(kind, ["down_proj"]))
    if targets == "all-linear":
        return list(TRANSFORMERS_MODELS_TO_IA3_TARGET_MODULES_MAPPING.get(kind, ["k_proj", "v_proj", "down_proj"])), forward
    if not exact:
        return targets, [name for name in forward if name in targets and isinstance(targets, list)]
    return targets, rf"(.*\.)?({'|'.join(map(re.escape, forward))})"


def _modules_to_save(adapter: Adapter) -> list[str] | None:
    """Return the modules that are trained whole beside the adapter; None for none."""
    return list(adapter.modules_to_save) or None


def _refuse_cut_rows(base: nn.Module) -> None:
    """Raise Refusal where PEFT's DoRA would widen a weight whose rows are no multiple of a block, which it does not know how to."""
    for name, module in base.named_modules():
        shape = getattr(getattr(module, "weight", None), "of_shape", None)
        if shape is not None and tuple(module.weight.quant_state.shape) != tuple(shape):
            text = f"adapter.type dora on 4-bit weights needs rows of a multiple of 64 numbers; {name} has {shape[1]}"
            raise Refusal("launch_misconfigured", text, "take adapter.type: lora, or train.frozen: half; then start afresh with --run DIR")


PEFT_KINDS: dict[str, PeftKind] = {  # by adapter.type, of those that are adapters
    "lora": PeftKind(_lora),
    "rslora": PeftKind(_lora),
    "dora": PeftKind(_lora, refuse=_refuse_cut_rows),
    "adalora": PeftKind(_adalora, step_hooks=RankBudget),
    "prompt": PeftKind(_prompt),
    "ia3": PeftKind(_ia3),
}
