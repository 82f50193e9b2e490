"""The fault language: what to break and when. The trainer and the checkpoint writer read it; supervisor and lab never do.

A fault fires where all its conditions hold. They are looked at for every micro-batch (phase `forward`), or at the named phase:
start, forward, backward, optimizer, snapshot (half written), commit (between snapshot and step row), evaluate (before the
held-out rows), evaluated (their loss is known, not journalled), best (journalled as the best, its checkpoint not asked for),
save (a checkpoint is whole but not yet renamed), saved (renamed, not yet acknowledged).
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, Field, model_validator

from holdfast.config.settings import PartialSettings, Settings, checked

Effect = Literal[
    "kill",
    "exit",
    "segfault",
    "abort",
    "raise",
    "oom",
    "host_oom",
    "hang",
    "slow",
    "nan_loss",
    "nan_grad",
    "zero_loss",
    "spike",
    "corrupt_checkpoint",
    "torn_checkpoint",
    "disk_full",
    "bad_sector",
    "device_gone",
]
Phase = Literal["start", "forward", "backward", "optimizer", "snapshot", "commit", "evaluate", "evaluated", "best", "save", "saved"]
CHECKPOINT_EFFECTS = ("corrupt_checkpoint", "torn_checkpoint", "disk_full", "bad_sector")
LOSS_EFFECTS = ("nan_loss", "zero_loss", "spike")  # they change a micro-batch's loss
LATE_EFFECTS = ("kill", "exit", "segfault", "abort", "raise", "host_oom", "hang", "slow")


class When(BaseModel, frozen=True, extra="forbid"):
    """Conditions of a fault; all that are given must hold."""

    tokens: tuple[int, int] | None = Field(None, description="token count of the micro-batch, both ends included")
    setting: Annotated[PartialSettings, AfterValidator(checked)] | None = Field(
        None, description="settings in force, for example {attention: sdpa, dtype: bf16}"
    )
    step: int | None = None
    sample: str | tuple[str, ...] | None = Field(
        None, description="file:line of a row in the micro-batch; the file's last parts suffice; several: all of them are in it"
    )
    attempt: int | None = Field(None, description="number of the trainer start, from 1")
    env: dict[str, str | None] | None = Field(None, description="environment variables and their values; null: not set")
    every: Annotated[int, Field(ge=1)] | None = Field(None, description="every N-th micro-batch of the run")
    probability: Annotated[float, Field(ge=0, le=1)] | None = None
    rank: int | None = None
    phase: Phase | None = None


class Fault(BaseModel, frozen=True, extra="forbid"):
    """One fault: a name, conditions, an effect."""

    name: str = "fault"
    when: When = When()
    effect: Effect
    message: str | None = Field(None, description="printed before the effect")
    seconds: float = Field(3.0, gt=0, description="slow: how long the micro-batch is held up")
    factor: float = Field(1000.0, description="spike: what the loss is multiplied by")
    late: int = Field(0, ge=0, description="micro-batches until the effect comes, at the latest when the step's gradients are complete")
    path: str = Field("checkpoints/*", description="bad_sector: which files of the run folder cannot be written")

    @model_validator(mode="after")
    def _phase_fits_effect(self) -> Fault:
        if self.effect in CHECKPOINT_EFFECTS and self.when.phase not in (None, "save"):
            raise ValueError(f"{self.effect} happens while a checkpoint is written; its phase can only be save")
        if self.effect in LOSS_EFFECTS and self.when.phase not in (None, "forward"):
            raise ValueError(f"{self.effect} changes a micro-batch's loss; its phase can only be forward")
        if self.effect == "nan_grad" and self.when.phase not in (None, "backward"):
            raise ValueError("nan_grad changes a micro-batch's gradients; its phase can only be backward")
        if self.late and (self.effect not in LATE_EFFECTS or self.home not in ("forward", "backward")):
            raise ValueError(f"late is for what a micro-batch can end or hold up ({', '.join(LATE_EFFECTS)}), in forward or backward")
        return self

    @property
    def home(self) -> str:
        """The phase at which the fault's conditions are looked at."""
        if self.when.phase:
            return self.when.phase
        return "save" if self.effect in CHECKPOINT_EFFECTS else "backward" if self.effect == "nan_grad" else "forward"


class FaultFile(BaseModel, frozen=True, extra="forbid"):
    faults: list[Fault]


@dataclass(frozen=True)
class Moment:
    """What conditions are compared with, at one point of one process. None means: there is no such thing at this point."""

    phase: str
    attempt: int
    rank: int = 0
    step: int | None = None
    tokens: int | None = None
    samples: tuple[str, ...] = ()
    count: int = 0
    seed: int = 0
    settings: Settings | None = None
    env: Mapping[str, str] = field(default_factory=lambda: os.environ)


def fires(fault: Fault, moment: Moment) -> bool:
    """True if every condition of `fault` holds at `moment`. `probability` is drawn from (seed, name, micro-batch count)."""
    when = fault.when
    return (
        moment.phase == fault.home
        and (when.tokens is None or (moment.tokens is not None and when.tokens[0] <= moment.tokens <= when.tokens[1]))
        and (when.setting is None or _in_force(when.setting, moment.settings))
        and (when.step is None or when.step == moment.step)
        and all(any(_names(wanted, sample) for sample in moment.samples) for wanted in _wanted(when))
        and (when.attempt is None or when.attempt == moment.attempt)
        and (when.env is None or all(moment.env.get(key) == value for key, value in when.env.items()))
        and (when.every is None or (moment.count > 0 and moment.count % when.every == 0))
        and (when.rank is None or when.rank == moment.rank)
        and (when.probability is None or _draw(fault.name, moment) < when.probability)
    )


def _in_force(wanted: PartialSettings, settings: Settings | None) -> bool:
    return settings is not None and all(getattr(settings, name) == value for name, value in wanted.items())


def _wanted(when: When) -> tuple[str, ...]:
    """Return the rows that have to be in the micro-batch."""
    return (when.sample,) if isinstance(when.sample, str) else when.sample or ()


def _names(wanted: str, sample: str) -> bool:
    """True if `wanted` ("file:line", the file possibly shortened to its last parts) is the row `sample` (full path:line)."""
    return sample == wanted or fnmatch.fnmatchcase(sample, "*/" + wanted)


def _draw(name: str, moment: Moment) -> float:
    digest = hashlib.blake2b(f"{moment.seed} {name} {moment.phase} {moment.step} {moment.count}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
