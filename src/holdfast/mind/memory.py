"""Memory arithmetic of a training step: what lies there all the time, what a micro-batch adds. Pure; bytes throughout."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.core.config import Config
from holdfast.core.modelfolder import ModelFacts
from holdfast.core.types import LOGITS_AT_ONCE

WIDTHS = {"fp32": 4, "bf16": 2}
_EMBEDDINGS = ("embed_tokens", "wte", "wpe", "lm_head", "embed_in", "embed_out", "word_embeddings")
_HIDDEN_KEPT, _MIDDLE_KEPT = 12, 4  # tensors of these two sizes a decoder layer keeps for backward, counted on Qwen2


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


def footprint(config: Config, model: ModelFacts, longest: int) -> Footprint:
    """The footprint of a LoRA run; `longest`: tokens of its longest row, which matters where attention matrices exist (eager)."""
    hidden = model.number("hidden_size", "n_embd", default=768)
    middle = model.number("intermediate_size", "n_inner", default=4 * hidden)
    heads = model.number("num_attention_heads", "n_head", default=12)
    width = WIDTHS[config.train.precision]
    stored = 2 if model.stored in ("BF16", "F16") else width  # frozen halves stay halves, whatever the arithmetic
    total = sum(_size(shape) for shape in model.shapes.values())
    trainable = trainable_parameters(config, model)
    masks = 6 * hidden + middle if config.adapter.dropout else 0
    attention = 3 * heads * longest * width if config.train.attention == "eager" else 0
    return Footprint(
        fixed={"weights": total * stored, "adapter": trainable * 4, "gradients": trainable * 4, "optimizer": trainable * 8},
        loading=total * width,
        layers=model.number("num_hidden_layers", "n_layer", default=12),
        kept=(_HIDDEN_KEPT * hidden + _MIDDLE_KEPT * middle) * width + masks + attention,
        carried=hidden * width,
        vocabulary=model.number("vocab_size", default=32000),
    )


def trainable_parameters(config: Config, model: ModelFacts) -> int:
    return sum(config.adapter.r * sum(shape) for shape in _adapted(model, config.adapter.targets))


def _adapted(model: ModelFacts, targets: str | list[str]) -> list[tuple[int, ...]]:
    """Shapes of the weights an adapter sits on: the named ones, or every matrix but embeddings and the output layer."""
    matrices = {name.removesuffix(".weight"): shape for name, shape in model.shapes.items() if name.endswith(".weight") and len(shape) == 2}
    if isinstance(targets, list):
        return [shape for name, shape in matrices.items() if name.rpartition(".")[2] in targets or name in targets]
    return [shape for name, shape in matrices.items() if not any(part in name for part in _EMBEDDINGS)]


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for side in shape:
        size *= side
    return size
