"""What a run was planned to need and to do: memory by kind, tokens at once, steps. plan.json is read and written here alone.

Who makes a plan is planning/plan.py. A key of another version's plan is ignored; `unknown_keys` names them, for whoever takes the run up.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError, field_validator

from holdfast.base.files import Json, read_json, write_json
from holdfast.base_model.parts import PARTS
from holdfast.config.settings import Dtype

Count = Annotated[int, Field(ge=0)]


class _Part(BaseModel, frozen=True, extra="ignore", allow_inf_nan=False):
    """A part of a plan: keys that it does not know are passed over."""


class Bytes(_Part):
    """Bytes at the peak of a step, by what they are for. snapshot: what saving adds to the same memory."""

    weights: Count = 0
    adapter: Count = 0
    gradients: Count = 0
    optimizer: Count = 0
    activations: Count = 0
    logits: Count = 0
    snapshot: Count = 0
    workspace: Count = 0
    allocator: Count = 0
    context: Count = 0

    def total(self) -> int:
        return sum(self.by_kind().values())

    def by_kind(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in type(self).model_fields}


class Params(_Part):
    """Numbers of parameters."""

    total: Count
    trainable: Count


class Seconds(_Part):
    """Wall time of a whole run."""

    low: Annotated[float, Field(ge=0)]
    likely: Annotated[float, Field(ge=0)]
    high: Annotated[float, Field(ge=0)]


class Alternative(_Part):
    """Another way to run it. slower: times the seconds of a step; None is unknown. fits: None where the capacity is."""

    change: str
    peak_bytes: Count
    slower: Annotated[float, Field(gt=0)] | None
    fits: bool | None = None


class Learns(_Part):
    """Parameters that are trained of a part, and the share of its weights that learn or carry an adapter; None: it has no weights."""

    parameters: Count
    share_of_kind: Annotated[float, Field(ge=0, le=1)] | None


def learning(trained: Mapping[str, int], weights: Mapping[str, int], reached: Mapping[str, int]) -> dict[str, Learns]:
    """Return what learns, by part of a model: from numbers that are trained, that there are, and that a change reaches."""
    shares = {part: round(reached.get(part, 0) / weights[part], 4) if weights.get(part) else None for part in PARTS}
    return {part: Learns(parameters=trained.get(part, 0), share_of_kind=shares[part]) for part in PARTS}


class Course(_Part):
    """How a run goes through its rows, as its settings take it."""

    precision: Dtype
    micro_batch_tokens: Annotated[int, Field(ge=1)]
    checkpointed_layers: Count


class Plan(Course):
    """Whether a run fits a device, and how it will go through its rows. None is unknown.

    reserve_bytes: of the capacity, what is left to others; frozen: how the base model's matrices are held; micro_batch_tokens: tokens that
    go through the model at once; checkpointed_layers: layers computed again in backward; host_bytes: of main memory, beside a GPU or all
    of it; disk_bytes: of the run folder; learns, weights_by_part: parameters trained, and of the model, by part (base_model/parts.py).
    unseen_rows: tokens of the longest row that it was planned for, where none is known yet.
    """

    fits: bool | None
    peak_bytes: Count
    capacity_bytes: Count | None
    bytes: Bytes
    params: Params
    learns: dict[str, Learns] = {}
    weights_by_part: dict[str, Count] = {}
    accumulation: Annotated[int, Field(ge=1)]
    reserve_bytes: Count | None = None
    frozen: Literal["fp32", "half", "nf4", "fp4", "int8"] | None = None
    host_bytes: Count | None = None
    disk_bytes: Count | None = None
    seconds: Seconds | None = None
    unseen_rows: Count | None = None
    alternatives: tuple[Alternative, ...] = ()
    reasons: tuple[str, ...] = ()

    @field_validator("learns", mode="before")
    @classmethod
    def _of_this_form(cls, value: Any) -> Any:
        """Drop what is in the form plans had for some days: numbers alone, which no share follows from."""
        return {part: one for part, one in value.items() if not isinstance(one, int)} if isinstance(value, dict) else value


class RowCounts(_Part):
    """Rows that are trained on, held out, and gone through in an epoch."""

    train: Count
    held_out: Count
    per_epoch: Count


class Base(_Part):
    """Which base model it is: the commit, where it is a download of the hub's, and the hash of each file."""

    commit: str | None = None
    files: dict[str, str]


class RunPlan(Plan):
    """The plan of a run whose rows are known. start_adapter: facts of the adapter it begins from; base: None in older runs."""

    steps: Annotated[int, Field(ge=1)]
    samples: Annotated[int, Field(ge=1)]
    rows: RowCounts
    data_sha256: str
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    pad_token_id: int | None = None
    start_adapter: Json | None = None
    base: Base | None = None


def write_plan(file: Path, plan: RunPlan) -> None:
    write_json(file, plan.model_dump(mode="json", exclude={"start_adapter"} if plan.start_adapter is None else None))


def read_plan(file: Path) -> RunPlan | None:
    """Read the plan in `file`; None where there is none, or what lies there is no plan."""
    try:
        return RunPlan.model_validate(read_json(file))
    except ValidationError:
        return None


def unknown_keys(file: Path) -> list[str]:
    """Return the keys of the file that this version knows nothing of, sorted."""
    return sorted((read_json(file) or {}).keys() - RunPlan.model_fields.keys())
