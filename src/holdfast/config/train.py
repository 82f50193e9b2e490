"""The parts of a config that say how it is trained: objective, optimizer, memory, ranks. Reads no file."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from holdfast.base.units import parse_memory
from holdfast.config.choices.frozen_formats import FORMATS, FrozenFormat
from holdfast.config.choices.optimizers import OPTIMIZERS, OptimizerKind, OptimizerName
from holdfast.config.objectives import OBJECTIVES, ObjectiveKind, ObjectiveName, objectives_of
from holdfast.config.section import Section
from holdfast.config.settings import Attention, Frozen

WITH_MOMENTS = tuple(kind.name for kind in OPTIMIZERS.values() if kind.moments == "own")
ROUNDED_AT_RANDOM = (*WITH_MOMENTS, *(kind.name for kind in OPTIMIZERS.values() if kind.moments == "blocks"))


class Preference(Section):
    """How answers are held against each other, where train.objective is not sft; by default as is usual for it."""

    beta: float | None = Field(
        None, gt=0, le=1000, description="how far the model may go from the reference: 0.1; simpo: scale of the margin, 2"
    )
    loss: Literal["sigmoid", "ipo", "hinge"] = Field("sigmoid", description="dpo: what becomes of a pair's margin")
    label_smoothing: float = Field(0.0, ge=0, lt=0.5, description="dpo, simpo, reward: share of the pairs that may be the wrong way round")
    length_normalised: bool = Field(False, description="dpo: margins per token")
    sft_weight: float = Field(0.0, ge=0, le=1000, description="dpo, simpo: share of the better answer's own loss per token that is added")
    margin: float = Field(0.5, ge=0, le=1000, description="simpo: by how much the better answer is to be ahead (gamma)")
    desirable_weight: float = Field(1.0, gt=0, le=1000, description="kto: weight of answers marked good")
    undesirable_weight: float = Field(1.0, gt=0, le=1000, description="kto: weight of answers marked bad")


class Until(Section):
    """What ends a run before its last step, once it is reached: the first of them that is."""

    loss: float | None = Field(
        None, gt=0, le=1_000_000, description="mean training loss of the last ten steps, and that of the last one, at most"
    )
    hours: float | None = Field(None, gt=0, le=100_000, description="of training, killed attempts included; the schedule is fitted to it")
    tokens: int | None = Field(None, ge=1, le=10**15, description="tokens trained on, without padding; the schedule is fitted to it")

    @model_validator(mode="after")
    def _one_at_least(self) -> Until:
        if self.loss is None and self.hours is None and self.tokens is None:
            raise ValueError("give loss, hours or tokens, as in until: {loss: 3.0}")
        return self


class Train(Section):
    """How it is trained."""

    objective: ObjectiveName = Field(
        "sft",
        description=f"what is learned: answers (sft), which of two answers is better ({', '.join(objectives_of('pairs'))}), "
        f"which answers are good ({', '.join(objectives_of('marks'))}), "
        "a number for an answer, of which the better one of two has more (reward)",
    )

    epochs: float | None = Field(None, gt=0, le=1_000_000, description="passes over the training rows; 1 when steps is not given either")
    steps: int | None = Field(None, ge=1, le=1_000_000_000, description="optimizer steps, instead of epochs")
    until: Until | None = Field(
        None,
        description="what ends the run once it is reached; with hours or tokens, and no steps or epochs, the run is as long as they say",
    )
    optimizer: OptimizerName = Field(
        "adamw",
        description="adamw8bit and paged (the same in memory that may move to the host): bitsandbytes; schedule_free: the mean of all "
        "steps is the result, lr stays after the warm-up; muon for matrices, AdamW for the rest",
    )
    effective_batch: int = Field(32, ge=1, le=10_000_000, description="samples per optimizer step")
    lr: float = Field(2e-4, gt=0, le=1000, description="peak learning rate")
    schedule: Literal["cosine", "linear", "constant"] = Field("cosine", description="how the learning rate falls after the warm-up, to 0")
    warmup: float = Field(0.03, ge=0, le=1_000_000_000, description="below 1: share of all steps; from 1 on: steps, all of them at most")
    weight_decay: float = Field(
        0.0,
        ge=0,
        le=1_000_000,
        description="decoupled decay: a step takes lr times this share off each trained weight; of adapter.type full and layers also off "
        "norms and biases",
    )
    beta1: float = Field(0.9, ge=0, lt=1, description="AdamW's beta1, the decay of the mean gradient; sgd: momentum")
    beta2: float = Field(0.999, ge=0, lt=1, description="AdamW's beta2, the decay of the mean squared gradient; lion: of its moment")
    epsilon: float = Field(1e-8, gt=0, le=1000, description="added to the root of AdamW's mean squared gradient before dividing by it")
    max_grad_norm: float = Field(1.0, gt=0, description="gradients are scaled down to this norm")
    precision: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        "auto",
        description="dtype of frozen weights and matrix products; auto: bf16 where the device is fast at it, fp16 on cards that are "
        "fast at that alone, fp32 for tiny models; fp16 has a loss scale",
    )
    frozen: Frozen = Field(
        "auto",
        description="how weights that are not trained are held; auto: as in their file; half: in 16 bits; nf4, fp4, int8: by bitsandbytes",
    )
    weights: Literal["fp32", "bf16"] = Field(
        "fp32",
        description="how weights that adapter.type full and layers train are held; bf16: half the bytes, of their gradients too, "
        "rounded at random so that small updates are not lost",
    )
    offload: Literal["off", "layers", "optimizer"] = Field(
        "off",
        description="what lies in main memory and comes to the card one ahead of what is used, for models that do not fit it; layers: "
        "frozen decoder layers; optimizer: the moments of adamw, lion and sgd; changes no result",
    )
    double_quant: bool = Field(False, description="nf4, fp4: the scales of blocks are quantised, too")
    neftune: float | None = Field(
        None,
        gt=0,
        le=100_000,
        description="NEFTune: noise on embeddings while training, of this size (alpha; 5 is usual); none when not given",
    )
    ladder: Literal["safe", "proven", "off"] = Field(
        "safe",
        description="safe: fast kernels that the start of the run proves; proven: what holdfast tune chose on this machine for this shape; "
        "off: plain kernels alone",
    )
    attention: Attention = Field("sdpa", description="sdpa: torch's fused attention; eager: plain products, slow, a reference")
    max_tokens: int = Field(512, ge=8, le=10_000_000, description="longest row in tokens; the answer of a longer one is cut")
    liger: bool | None = Field(
        None,
        description="Liger's Triton kernels for norms, activations and rotary positions, once proven to give the model's own results; "
        "by default on a GPU where liger-kernel is installed",
    )
    packing: bool = Field(True, description="several samples share a row without padding, each attending to itself alone")
    micro_batch_tokens: int | None = Field(
        None, ge=1, le=1_000_000_000, description="tokens per forward pass; the plan chooses when not given"
    )
    checkpointed_layers: int | None = Field(
        None, ge=0, le=1_000_000, description="decoder layers computed again in backward to save memory; the plan chooses when not given"
    )
    memory_limit: Annotated[int, BeforeValidator(parse_memory)] | None = Field(
        None,
        ge=1,
        le=2**50,
        description="most memory the trainer may take, for example 8GiB; by default 95 % of it where running out freezes a machine",
    )
    memory_reserve: Annotated[int, BeforeValidator(lambda value: 0 if str(value) == "0" else parse_memory(value))] | None = Field(
        None,
        ge=0,
        le=2**50,
        description="memory of the device that a plan keeps free for other programs, for example 2GiB; by default a fifth of main memory, "
        "a quarter of a card, 35 % of one whose driver hangs the machine when it is full",
    )
    seed: int = Field(0, ge=0, lt=2**31, description="of the adapter's first weights, the order of the rows, dropout and what is held out")
    deterministic: bool | None = Field(
        None, description="only kernels that give the same bits every time; by default on the CPU and in trials"
    )
    threads: int | None = Field(
        None, ge=1, le=10_000, description="CPU threads of each rank; all cores this process may use, shared by the ranks, when not given"
    )
    ranks: Literal["auto"] | Annotated[int, Field(ge=1, le=1024)] = Field(
        1, description="processes that train together, one a device; auto: one for each GPU of the first one's kind"
    )
    ranks_min: int = Field(1, ge=1, le=1024, description="fewest ranks to go on with where devices are lost")
    reduction_parts: Literal["off"] | Annotated[int, Field(ge=2, le=1024)] | None = Field(
        None,
        description="parts of a step (2, 4, 8 ...), added in one order, so that any number of ranks gives the same bits; "
        "8 where there are several ranks, else off",
    )
    parts_at_once: Literal["auto", "off"] | Annotated[int, Field(ge=2, le=64)] = Field(
        "auto",
        description="on a CPU, parts of each step (2, 4, 8 ...) that are computed at the same time, on cores of their own; auto: one "
        "for each core, 4 at most, on a model that is heavy enough to gain from it, where that was measured: LoRA with sft (4 bits too) "
        "and dpo, DoRA with sft; off where other programs keep the cores busy",
    )
    parts_in: Literal["auto", "threads", "processes"] = Field(
        "auto",
        description="what computes the parts of parts_at_once: threads of one process, or processes, which are faster and each hold the "
        "model; the bits are the same. auto: processes where memory has room for them at a start",
    )

    spot_check: int | None = Field(
        None,
        ge=1,
        le=1_000_000_000,
        description="steps between checks of each rank's gradients by another rank, for devices that compute wrong; never when not given",
    )
    fsdp: bool = Field(
        False,
        description="cut frozen layers into pieces, one a rank (FSDP2), for models that do not fit one card, changes no result; "
        "adapter.type full: weights, gradients and moments",
    )

    @property
    def objective_kind(self) -> ObjectiveKind:
        """What is known of its objective."""
        return OBJECTIVES[self.objective]

    @property
    def optimizer_kind(self) -> OptimizerKind:
        """What is known of its optimizer."""
        return OPTIMIZERS[self.optimizer]

    @property
    def frozen_format(self) -> FrozenFormat:
        """What is known of how it holds weights that are not trained."""
        return FORMATS[self.frozen]

    @property
    def wants_bitsandbytes(self) -> list[str]:
        """The keys, with their values, that only bitsandbytes can do."""
        frozen, optimizer = self.frozen_format.width, self.optimizer_kind.moments == "blocks"
        return [*([f"train.frozen: {self.frozen}"] if frozen else []), *([f"train.optimizer: {self.optimizer}"] if optimizer else [])]

    @model_validator(mode="after")
    def _one_length(self) -> Train:
        if self.epochs is not None and self.steps is not None:
            raise ValueError("give epochs or steps, not both")
        return self

    @model_validator(mode="before")
    @classmethod
    def _no_schedule(cls, tree: Any) -> Any:
        """Give an optimizer without a schedule none, where another was not asked for."""
        kind = OPTIMIZERS.get(str(tree.get("optimizer"))) if isinstance(tree, dict) else None
        if kind is None or not kind.averages:
            return tree
        if (schedule := tree.get("schedule", "constant")) != "constant":
            raise ValueError(f"optimizer {kind.name} has no schedule, and schedule is {schedule}; leave it out")
        return tree | {"schedule": "constant"}

    @model_validator(mode="after")
    def _held(self) -> Train:
        if self.offload == "optimizer" and self.optimizer not in WITH_MOMENTS:
            beside = "; paged is AdamW of 8 bits whose moments the driver moves there" if self.optimizer != "paged" else " by itself"
            raise ValueError(f"offload optimizer is for {_some(WITH_MOMENTS)}, this is optimizer {self.optimizer}{beside}")
        if self.weights == "bf16" and self.optimizer not in ROUNDED_AT_RANDOM:
            raise ValueError(f"weights bf16 go with optimizer {_some(ROUNDED_AT_RANDOM)}: {self.optimizer} would round small updates away")
        if self.weights == "bf16" and self.precision == "fp16":
            raise ValueError("weights bf16 do not go with precision fp16, whose range is smaller; take auto, bf16 or fp32")
        return self

    @model_validator(mode="before")
    @classmethod
    def _by_its_name(cls, tree: Any) -> Any:
        """Take `shards`, the older name of reduction_parts."""
        if isinstance(tree, dict) and "shards" in tree and "reduction_parts" not in tree:
            tree = dict(tree)
            tree["reduction_parts"] = tree.pop("shards")
        return tree

    @field_validator("reduction_parts", "parts_at_once", "offload", "ladder", mode="before")
    @classmethod
    def _off(cls, value: Any) -> Any:
        return "off" if value is False else value  # YAML takes a plain off for false

    @model_validator(mode="after")
    def _ranks_fit_parts(self) -> Train:
        parts, ranks = self.reduction_parts, self.ranks
        for name, count in (("reduction_parts", parts), ("parts_at_once", self.parts_at_once)):
            if isinstance(count, int) and count & (count - 1):
                near = f"{1 << count.bit_length() - 1} or {1 << count.bit_length()}"
                raise ValueError(f"{name} is {count}, which is no power of two: {near}")
        if isinstance(ranks, int) and self.ranks_min > ranks:
            raise ValueError(f"ranks_min is {self.ranks_min}, ranks {ranks}: it cannot be more")
        if self.spot_check is not None and self.fsdp:
            raise ValueError("spot_check computes parts on one rank alone, which train.fsdp cannot; leave one of them out")
        if parts == "off" or ranks == "auto" or ranks == 1:
            return self
        if ranks & (ranks - 1):
            below = 1 << ranks.bit_length() - 1
            text = f"{below} or {2 * below} with reduction_parts, any number with reduction_parts: off"
            raise ValueError(f"ranks is {ranks}, which is no power of two: {text}")
        if parts is not None and ranks > parts:
            raise ValueError(
                f"ranks is {ranks} and reduction_parts {parts}: a rank without a part has nothing to do; {ranks} parts, or more"
            )
        return self


def _some(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"
