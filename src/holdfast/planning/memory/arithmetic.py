"""Memory arithmetic of a training step: what lies there all the time, what a micro-batch adds. Pure; bytes throughout."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from holdfast.base_model.folder import ModelFacts
from holdfast.base_model.forms import SIBLINGS
from holdfast.base_model.parts import in_stacks
from holdfast.config.choices.frozen_formats import NESTED_SAVES
from holdfast.config.config import Config
from holdfast.planning.memory.trained_size import adapted, packed_by_us, trainable_parameters
from holdfast.run.snapshots.memory_file import file_bytes
from holdfast.run.types import LOGITS_AT_ONCE, STRETCH, WIDENED_ROWS

# What ranks have pieces of where they cut what is trained; and how often what is gathered is there again, as gradients: this rank's, and
# all ranks' of its pieces.
KINDS_IN_PIECES, GATHERED_BESIDE = ("adapter", "gradients", "optimizer"), 2

_ROUNDED, _PLACES = 14, 3  # bytes of a weight that is being rounded at random; stretches of moments that are on a card


@dataclass(frozen=True)
class TrainedBytes:
    """Bytes of `count` trained weights: in themselves, their gradients, the optimizer's state; how much of that lies in main memory beside
    a card, and what an update needs beside them."""

    weights: int
    gradients: int
    state: int
    away: int = 0
    beside: int = 0

    @property
    def snapshots(self) -> int:
        """Of the file of snapshots."""
        return file_bytes(self.weights, self.state)


def trained_bytes(config: Config, count: int, on_card: bool) -> TrainedBytes:
    """Compute the bytes that `count` trained weights take."""
    train = config.train
    width, state = (2 if train.weights == "bf16" else 4), int(count * train.optimizer_kind.state_bytes)
    away = on_card and train.offload == "optimizer"
    beside = (_ROUNDED * min(count, STRETCH) if width == 2 else 0) + (visiting_bytes(count, state) if away else 0)
    if config.adapter.start and train.objective_kind.reference:  # the reference's values: on a card they come while it is computed with
        beside += count * width
    return TrainedBytes(count * width, count * width, state, state if away else 0, int(beside))


def visiting_bytes(count: int, state: float) -> float:
    """Return the bytes an update of so many weights needs on a card whose optimizer keeps its state, `state` bytes, in main memory."""
    return _PLACES * state * min(1.0, STRETCH / max(1, count))


# How samples of a row attend on a GPU: all at once, each by itself in a fused kernel, or with a matrix of each head's scores.
Attends = Literal["at once", "apart", "plainly"]

# Bytes a layer keeps for backward on a CPU, per token and unit of these two sizes: counted on Qwen2, a third added to the first.
_HIDDEN_KEPT, _MIDDLE_KEPT = {"fp32": 48, "bf16": 40, "fp16": 40}, {"fp32": 16, "bf16": 8, "fp16": 8}


@dataclass(frozen=True)
class Footprint:
    """What a run needs. `fixed`: by kind. Per token: `kept` of one layer, for backward; `carried` of a layer that is computed again.

    What lies there for a moment: while a layer goes backward, `passing` a token and `scores` of the longest sample; before that, beside
    logits, `labelled` a token. `logit`: bytes an element of a chunk of logits, where there is one chunk and where there are more;
    `widened`: bytes of the output layer beside them.
    """

    fixed: dict[str, int]
    loading: int
    layers: int
    kept: int
    carried: int
    vocabulary: int
    on_card: bool = False
    passing: int = 0
    scores: int = 0
    labelled: int = 0
    logit: tuple[int, int] = (8, 8)
    widened: int = 0

    def step(self, tokens: int, checkpointed: int) -> dict[str, int]:
        """Return {activations, logits} of a micro-batch in bytes at its peak: at its logits, or while a layer goes backward.

        On a CPU, whose heap keeps holes, they are counted together.
        """
        kept, again = self._kept(checkpointed)
        forward = {"activations": tokens * (kept + self.labelled), "logits": self.logits(tokens)}
        backward = {"activations": tokens * (kept + again + self.passing) + self.scores, "logits": 0}
        if not self.on_card:
            return {"activations": backward["activations"], "logits": forward["logits"]}
        return max(forward, backward, key=lambda one: sum(one.values()))

    def tokens(self, room: float, most: int, checkpointed: int) -> int:
        """Return how many tokens, at most `most`, fit into `room` bytes beside the fixed ones."""
        kept, again = self._kept(checkpointed)
        beside = self.logits(most)
        backward = (room - (self.scores if self.on_card else beside)) / max(1, kept + again + self.passing)
        return int(min(backward, (room - beside) / max(1, kept + self.labelled)) if self.on_card else backward)

    def _kept(self, checkpointed: int) -> tuple[int, int]:
        """Return bytes a token of all layers, and of the layer that is being recomputed."""
        again = min(checkpointed, self.layers)
        return (self.layers - again) * self.kept + again * self.carried, (again > 0) * self.kept

    def logits(self, tokens: int) -> int:
        """Return the bytes of the largest chunk of logits: values, what is computed from them, and what is left of the chunk before."""
        rows = max(1, LOGITS_AT_ONCE // self.vocabulary)
        return self.logit[tokens > rows] * self.vocabulary * min(tokens, rows) + self.widened


def footprint(
    config: Config, model: ModelFacts, precision: str, longest: int, on_card: Attends | None = None, fused: bool = False
) -> Footprint:
    """Compute the footprint of a LoRA run. longest: tokens of its longest row, which matters where attention matrices exist.

    on_card: how samples attend on a GPU; None on a CPU. fused: kernels draw dropout's masks anew, which else lie there until backward.
    """
    hidden, middle, heads = _sizes(model)
    halves, mixed = model.stored in ("BF16", "F16"), precision != "fp32"
    total = model.parameters()
    trainable = trainable_parameters(config, model)
    masks = 6 * hidden + middle if config.adapter.dropout and not fused else 0
    stacked = in_stacks(model.shapes)  # no linear layers: as wide as what is computed
    weights = (total - stacked) * (2 if halves or mixed else 4) + stacked * (2 if mixed else 4)
    width, widened = config.train.frozen_format.width, 0
    if width is not None:
        held = width - NESTED_SAVES * config.train.double_quant
        inside = sum(math.prod(shape) for name, shape in model.linear().items() if not in_stacks({name: shape}))
        weights = int(weights - inside * (2 if halves or mixed else 4) + inside * held)
        if packed_by_us(config, model):
            widened = stacked // _layers(model) * 2 // 3 * (2 if mixed else 4)  # the larger stack of a layer, gate and up
            weights = int(weights - stacked * (2 if mixed else 4) + stacked * held)
    elif config.train.frozen == "fp32":
        weights = total * 4
    if config.adapter.kind.own_weights:  # what is trained is counted as the adapter
        weights = (total - trainable) * (2 if halves else 4)
    scores, moving = _scores(config, model, mixed, on_card)
    narrowed = 2 * trainable if mixed and config.train.weights != "bf16" else 0  # products take a copy
    own = trained_bytes(config, trainable, on_card is not None)
    need = Footprint(
        fixed={
            "weights": weights,
            "adapter": own.weights,
            "gradients": own.gradients,
            "optimizer": own.state - own.away,
            "workspace": own.beside + widened,
        },
        loading=total * (2 if halves and mixed else 4) + (weights if width is not None else 0),  # what is quantised lies beside its origin
        layers=_layers(model),
        kept=masks + scores * heads * longest + _kept_products(config, model, mixed),
        carried=hidden * 4,
        vocabulary=model.number("vocab_size", default=32000),
    )
    if on_card is None:
        return replace(need, kept=need.kept + _HIDDEN_KEPT[precision] * hidden + _MIDDLE_KEPT[precision] * middle)
    return replace(
        need,
        fixed=need.fixed | {"adapter": own.weights + narrowed},
        kept=need.kept + _kept_on_a_card(config, model, mixed, on_card == "at once"),
        on_card=True,
        passing=(1 if mixed else 2) * max(21 * hidden, hidden + 4 * middle),  # in its attention, or after it
        scores=moving * heads * longest * longest,
        labelled=(8 if mixed else 12) * hidden,  # the last norm's output, that of labels, and their gradient
        logit=_logit_on_a_card(config, model, mixed),
        widened=0 if mixed or not halves else 4 * hidden * WIDENED_ROWS,
    )


def _scores(config: Config, model: ModelFacts, mixed: bool, on_card: Attends | None) -> tuple[int, int]:
    """Return bytes of one attention score: kept for backward, and live while one sample's scores go backward."""
    capped = on_card not in (None, "at once") and model.text.get("attn_logit_softcapping")
    if not (capped or config.train.attention == "eager"):
        return (4 if on_card == "plainly" else 0), 0
    if on_card is None:
        return 12, 0
    width = 2 if mixed else 4
    kept = 1 + (6 if mixed else 4) + (width if capped else 0)  # who sees whom, the softmax and what it is rounded to, the capped score
    return kept, 8 + width


def _logit_on_a_card(config: Config, model: ModelFacts, mixed: bool) -> tuple[int, int]:
    """Return bytes of a logit, in the only chunk and in one of many, by torch's operations: a start may leave out the loss's kernel, which
    needs at most as much."""
    if model.text.get("final_logit_softcapping"):
        return 14, 16
    if config.adapter.kind.own_weights:  # a trained layer's are made again in backward
        return 12, 12
    return (6, 10) if mixed else (4, 8)


def cut_between(need: Footprint, model: ModelFacts, ranks: int, mixed: bool) -> Footprint:
    """Return the footprint of one of `ranks` that shard each layer: beside its shard two whole layers, one computed and one on its way.

    mixed: with products in 16 bits, for each of which the matrices that are given one input lie there once more, with the adapter in them.
    """
    weights = need.fixed["weights"]
    layers = weights * sum(map(math.prod, model.linear().values())) // max(1, model.parameters())
    workspace = need.fixed.get("workspace", 0) + (2 * _largest_group(model) if mixed else 0)
    return _with_pieces(replace(need, fixed=need.fixed | {"workspace": workspace}), layers, layers // ranks)


def _largest_group(model: ModelFacts) -> int:
    """Return the numbers in the largest linear layer, or in the largest layers that are given one input."""
    groups: dict[str, int] = {}
    for name, shape in model.linear().items():
        parent, _, own = name.rpartition(".")
        group = next((f"{parent} {names[0]}" for names in SIBLINGS if own in names), name)
        groups[group] = groups.get(group, 0) + math.prod(shape)
    return max(groups.values(), default=0)


def in_pieces(need: Footprint, model: ModelFacts, ranks: int) -> Footprint:
    """Return the footprint of one of `ranks` that shard all weights, gradients and moments, with what is gathered for a while."""
    own = {kind: need.fixed[kind] // ranks for kind in KINDS_IN_PIECES}
    whole, fixed = gathered_bytes(model), need.fixed
    loading = own["adapter"] + whole  # each piece is taken from files that are mapped
    return replace(
        need, fixed=fixed | own | {"weights": whole, "workspace": fixed.get("workspace", 0) + GATHERED_BESIDE * whole}, loading=loading
    )


def gathered_bytes(model: ModelFacts) -> int:
    """Return the bytes of sharded weights that are whole at a time, in fp32: those outside of the layers, and one layer."""
    layers = sum(map(math.prod, model.linear().values()))
    return 4 * (model.parameters() - layers + layers // max(1, _layers(model)))


def kept_away(need: Footprint, layers: int) -> Footprint:
    """Return the footprint of a run whose frozen layers, `layers` bytes in all, are in main memory: two of them stay on the device."""
    return _with_pieces(need, layers, 0)


def layers_bytes(config: Config, model: ModelFacts, precision: str) -> int:
    """Return the bytes of the frozen matrices of all layers, in the form they are held in."""
    wide = 2 if config.train.frozen != "fp32" and (precision != "fp32" or model.stored in ("BF16", "F16")) else 4
    fewer = config.train.frozen_format.width
    width = fewer - NESTED_SAVES * config.train.double_quant if fewer else wide
    return int(sum(map(math.prod, model.linear().values())) * width)


def _with_pieces(need: Footprint, layers: int, held: int) -> Footprint:
    """Replace the frozen layers' bytes, `layers`, by `held`, and add two whole layers: one computed and one on its way."""
    weights = need.fixed["weights"]
    left = min(weights, max(0, weights - layers) + held + 2 * layers // max(1, need.layers))
    return replace(need, fixed=need.fixed | {"weights": left}, loading=left)


def _sizes(model: ModelFacts) -> tuple[int, int, int]:
    """Return (hidden, middle, heads) of the model."""
    hidden = model.number("hidden_size", "n_embd", default=768)
    middle = model.number("intermediate_size", "n_inner", default=4 * hidden)
    return hidden, middle, model.number("num_attention_heads", "n_head", default=12)


def _layers(model: ModelFacts) -> int:
    return model.number("num_hidden_layers", "n_layer", default=12)


def _kept_products(config: Config, model: ModelFacts, mixed: bool) -> int:
    """Return the bytes a token that PEFT's DoRA and AdaLoRA keep of a layer: products of each matrix, and with dropout their copies."""
    if not config.adapter.kind.keeps_products:
        return 0
    features = sum(matrix.rows for matrix in adapted(model, config.adapter.targets)) // _layers(model)
    return features * (2 if mixed else 4) * config.adapter.kind.keeps_products * (2 if config.adapter.dropout else 1)


def _kept_on_a_card(config: Config, model: ModelFacts, mixed: bool, at_once: bool) -> int:
    """Return the bytes a token that a layer keeps for backward on a GPU, without scores and masks.

    What each operation of such a layer keeps, added up; tests/trainer/test_step_on_pretended_card.py compares it with traced steps.
    """
    hidden, middle, heads = _sizes(model)
    size = model.number("head_dim", default=hidden // heads)
    keys = size * model.number("num_key_value_heads", default=heads)
    queries, width = size * heads, 2 if mixed else 4
    norms = sum(len(shape) == 1 and "norm" in name for name, shape in model.shapes.items()) / _layers(model)
    between = any(name.endswith("q_norm.weight") for name in model.shapes)  # of queries and keys
    low = len(adapted(model, config.adapter.targets)) * config.adapter.r / _layers(model)
    kept = 4 * width * middle + width * low + 2 * (4 + width) * hidden + 4 * (heads + 2)
    kept += 4 * hidden * max(0, int(norms) - 2 - 2 * between)  # those of what a part gives
    kept += 4 * (queries + keys + 2 * heads) if between else 0
    if at_once:
        return int(kept + 2 * width * (queries + keys))
    return int(kept + (14 if mixed else 16) * queries)  # keys and values are repeated for their heads
