"""The settings of a run: what its steps are computed with. Each one's legal values, default and scope stand here and nowhere else.

Which hold from which step on is the timeline's (run/timeline.py); which to begin with, the plan's (planning/plan.py).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, Field, ValidationError

from holdfast.config.choices.frozen_formats import Frozen as Frozen

T = TypeVar("T")
OfModel = Annotated[T, "model"]  # fixed when the model is built
OfProcess = Annotated[T, "process"]  # holds for all that a process does
OfStep = Annotated[T, "step"]  # looked up anew in each step
_OF_MEMORY = "learned where memory runs out"

Attention = Literal["eager", "sdpa"]
Dtype = Literal["fp32", "bf16", "fp16"]
PartialSettings: TypeAlias = dict[str, Any]  # some settings by name: what an entry of the timeline, a remedy or a trial changes


class Settings(BaseModel, frozen=True, strict=True, extra="ignore", allow_inf_nan=False):
    """All settings in force at one step. A name that is unknown here is ignored: a run folder may come from another version."""

    device: OfModel[Literal["cuda", "cpu"] | None] = None  # None, in old run folders: what there is
    attention: OfModel[Attention] = "sdpa"
    dtype: OfModel[Dtype] = "fp32"
    frozen: OfModel[Frozen] = "auto"
    double_quant: OfModel[bool] = False
    liger: OfModel[bool] = False
    fused: OfModel[bool] = False
    packing: OfModel[bool] = True
    shards: OfProcess[Annotated[int, Field(ge=1)]] = 1  # train.reduction_parts: parts of a step, added in one binary tree; 1: undivided
    part_threads: OfProcess[Annotated[int, Field(ge=1)] | None] = None  # that a part is computed in; None: all
    at_once: OfStep[Annotated[int, Field(ge=1), _OF_MEMORY]] = 1  # parts computed at the same time; the bits are the same
    varlen: OfModel[bool] = False
    own_head: OfModel[bool] = False
    all_learn: OfModel[bool] = False  # all-linear is of layers alone on which LoRA learns; old run folders have some that do not
    exact_start: OfModel[bool] = False  # DoRA and init orthogonal begin in fp32, IA3 by patterns scales PEFT's inputs; old folders: neither
    own_dropout: OfModel[bool] = True  # a model's own code may drop by torch's generator; runs that begin now leave that out
    rope_apart: OfModel[bool] = False  # rows that longrope turns otherwise share no micro-batch with others; in old folders they do
    micro_batch_tokens: OfStep[Annotated[int, Field(ge=1), _OF_MEMORY]]
    checkpointed_layers: OfModel[Annotated[int, Field(ge=0), _OF_MEMORY]] = 0
    activations_on_host: OfModel[bool] = False
    memory_limit_bytes: OfProcess[Annotated[int, Field(ge=1)] | None] = None
    threads: OfProcess[Annotated[int, Field(ge=1)]]
    deterministic: OfProcess[bool] = True
    env: OfProcess[dict[str, str | None]] = Field(default_factory=dict)  # changes to the environment (None: unset)
    steps: OfStep[Annotated[int, Field(ge=1)]]  # of the whole run
    samples: OfStep[Annotated[int, Field(ge=1)]]  # of all steps together
    behind: OfStep[Annotated[int, Field(ge=0)]] = 0  # samples that the last step before an extension was short of
    patience_from: OfStep[Annotated[int, Field(ge=1)]] = 1  # evaluations before this step do not count as without improvement
    lr_factor: OfStep[Annotated[float, Field(gt=0)]] = 1.0
    quarantine: OfStep[Annotated[tuple[int, ...], Field(strict=False)]] = ()  # numbers of samples that are left out

    def as_json(self) -> PartialSettings:
        """Return the settings that were ever given a value, as the timeline holds them."""
        return self.model_dump(mode="json", exclude_unset=True)

    def threads_of_each(self, ranks: int) -> int:
        """Return the CPU threads of each of `ranks` processes; all where parts are computed at the same time in one."""
        return max(1, self.threads // ranks) if self.at_once > 1 else self.threads

    def parts_of_each(self, ranks: int) -> int:
        """Return how many parts of a step each of `ranks` processes computes at the same time."""
        return max(1, self.at_once // ranks)

    def of_model(self) -> PartialSettings:
        """Return the settings that a model is built for; the others hold for the process, or are looked up in each step."""
        return {name: getattr(self, name) for name in _MODEL}


def _marked(mark: str) -> tuple[str, ...]:
    return tuple(name for name, field in Settings.model_fields.items() if mark in field.metadata)


_MODEL = _marked("model")
MEMORY_SETTINGS = _marked(_OF_MEMORY)


def checked(change: Mapping[str, Any]) -> PartialSettings:
    """Return the same change, if each name is a setting and each value legal. Raises ValueError naming every problem."""
    wrong = [_unknown(name) for name in change if name not in Settings.model_fields]
    try:
        Settings.model_validate(change)
    except ValidationError as error:
        wrong += [told for name, told in problems(error) if name in change]
    if wrong:
        raise ValueError("; ".join(wrong))
    return dict(change)


def problems(error: ValidationError) -> Iterator[tuple[str, str]]:
    """Yield each setting that `Settings` refused, once, and what is wrong with it."""
    for name, problem in {str(problem["loc"][0]): problem["msg"] for problem in error.errors()}.items():
        yield name, f"{name}: {problem[0].lower()}{problem[1:]}"


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, Settings.model_fields, 1, 0.5)
    return f"{name}: no such setting; " + (f"did you mean {near[0]}?" if near else f"one of {', '.join(Settings.model_fields)}")
