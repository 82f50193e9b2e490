"""Memory arithmetic of a training step: what lies there all the time, what a micro-batch adds. Pure; bytes throughout."""

from __future__ import annotations

import re
from dataclasses import dataclass

from holdfast.core.config import Config
from holdfast.core.modelfolder import ModelFacts
from holdfast.core.types import LOGITS_AT_ONCE

# Bytes a decoder layer keeps for backward, per token and unit of these two sizes: counted on Qwen2, with a third added to the first.
_HIDDEN_KEPT, _MIDDLE_KEPT = {"fp32": 48, "bf16": 40}, {"fp32": 16, "bf16": 8}


@dataclass(frozen=True)
class Footprint:
    """What a run needs. `kept`: of one layer per token, for backward; `carried`: of a layer that is computed again; `fixed`: by kind."""

    fixed: dict[str, int]
    loading: int
    layers: int
    kept: int
    carried: int
    vocabulary: int

    def activations(self, tokens: int, checkpointed: int) -> int:
        again = min(checkpointed, self.layers)
        return tokens * ((self.layers - again + (again > 0)) * self.kept + again * self.carried)

    def logits(self, tokens: int) -> int:
        """Two chunks of logits in fp32 at most: values, and what is made of them."""
        return 2 * 4 * self.vocabulary * min(tokens, max(1, LOGITS_AT_ONCE // self.vocabulary))


def footprint(config: Config, model: ModelFacts, precision: str, longest: int) -> Footprint:
    """The footprint of a LoRA run; `longest`: tokens of its longest row, which matters where attention matrices exist (eager)."""
    hidden = model.number("hidden_size", "n_embd", default=768)
    middle = model.number("intermediate_size", "n_inner", default=4 * hidden)
    heads = model.number("num_attention_heads", "n_head", default=12)
    halves, mixed = model.stored in ("BF16", "F16"), precision == "bf16"
    total = model.parameters()
    trainable = trainable_parameters(config, model)
    masks = 6 * hidden + middle if config.adapter.dropout else 0
    attention = 3 * heads * longest * 4 if config.train.attention == "eager" else 0
    weights = total * (2 if halves or mixed else 4)
    return Footprint(
        fixed={
            "weights": weights,
            "adapter": trainable * 4,
            "gradients": trainable * 4,
            "optimizer": trainable * 8,
        },
        loading=total * (2 if halves and mixed else 4),
        layers=model.number("num_hidden_layers", "n_layer", default=12),
        kept=_HIDDEN_KEPT[precision] * hidden + _MIDDLE_KEPT[precision] * middle + masks + attention,
        carried=hidden * 4,
        vocabulary=model.number("vocab_size", default=32000),
    )


def trainable_parameters(config: Config, model: ModelFacts) -> int:
    return sum(config.adapter.r * sum(shape) for shape in _adapted(model, config.adapter.targets))


def _adapted(model: ModelFacts, targets: str | list[str]) -> list[tuple[int, ...]]:
    """Shapes of the weights an adapter sits on: those that are named or match, or every matrix but embeddings and the output layer."""
    if targets == "all-linear":
        return list(model.linear().values())
    modules = model.matrices()
    if "lm_head" not in modules and (tied := [shape for name, shape in modules.items() if name.endswith("embed_tokens")]):
        modules["lm_head"] = tied[0]
    if isinstance(targets, str):
        return [shape for name, shape in modules.items() if re.fullmatch(targets, name)]  # as PEFT reads a text
    return [shape for name, shape in modules.items() if name.rpartition(".")[2] in targets or name in targets]
