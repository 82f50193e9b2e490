"""The protocol between the loop and what it trains. The loop knows nothing of text or tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from holdfast.base.files import Json
from holdfast.config.config import Config
from holdfast.config.settings import PartialSettings, Settings
from holdfast.run.artifact import Artifact
from holdfast.run.folder import RunFolder
from holdfast.run.sampling.shuffle import Rows
from holdfast.run.sampling.step_table import StepTable
from holdfast.trainer.common.batch import Batch
from holdfast.trainer.distributed.rank import Rank
from holdfast.trainer.protocol.step_hooks import StepHooks

# is told how many rows a model was just asked for; 0: it has computed one more token
Asked = Callable[[int], None]

HELD_OUT_AT_ONCE = 512  # rows that an evaluation lays out, and judges, together

OneBatch = TypeVar("OneBatch", bound=Batch)


class DataSet(Protocol):
    """The rows of a task, by number."""

    @property
    def table(self) -> StepTable:
        """Which rows each step sees."""
        ...

    @property
    def held_out(self) -> Rows:
        """Rows that are evaluated and never trained on."""
        ...

    @property
    def sizes(self) -> Rows:
        """Tokens of each row."""
        ...

    def source(self, number: int) -> str:
        """Return where a row stands: file and line."""
        ...


class Task(Protocol[OneBatch]):
    """What is trained: its rows, parameters, micro-batches and loss, and all of it that a snapshot must hold."""

    data: DataSet
    model: nn.Module
    artifact: dict[str, Tensor]
    form: Artifact
    step_hooks: StepHooks

    @classmethod
    def settle(cls, config: Config, settings: Settings) -> tuple[PartialSettings, str]:
        """Name settings this machine is better off with, and why, before anything is built; none where they are right."""
        ...

    @classmethod
    def look_first(cls, run: RunFolder, config: Config) -> Iterator[tuple[str, Json]]:
        """Give (kind, facts) of what is to be told before the first step of a run, and can be known before anything is built.

        Raises Refusal where the run cannot serve its purpose.
        """
        ...

    @classmethod
    def build(cls, run: RunFolder, config: Config, settings: Settings, device: torch.device, trial: bool = False) -> Task[OneBatch]:
        """Build the task as it is before its first step: that follows from the run's data, config and settings alone.

        trial: it reads what the run's folder holds, and writes nothing there.
        """
        ...

    @classmethod
    def evaluate(cls, run: RunFolder, config: Config, settings: Settings, asked: Asked) -> Json:
        """Load the finished artifact afresh and measure it on the held-out rows; return the content of evaluation.json."""
        ...

    @property
    def measures(self) -> tuple[str, ...]:
        """Names of what is summed over labels beside their loss, as their means stand in a step's row: `token_accuracy`."""
        ...

    @property
    def facts(self) -> Json:
        """How it computes, for the event `restored`."""
        ...

    def remarks(self, fresh: bool) -> Iterator[tuple[str, Json]]:
        """Give (kind, facts) of the events an attempt begins with. fresh: no step was trained before."""
        ...

    def prove(self) -> tuple[PartialSettings, str]:
        """Name settings that have to change, and why: what they ask for computes something else here. Moves no weight."""
        ...

    def refuse(self, samples: list[int], step: int) -> None:
        """Raise Refusal where these samples cannot make a step."""
        ...

    def batches(self, samples: list[int], budget: int) -> list[OneBatch]:
        """Lay these samples out as micro-batches, none larger than `budget` tokens unless one sample alone is."""
        ...

    def prepare(self, samples: list[int], budget: int) -> None:
        """Lay out now what `batches` will be asked for next."""
        ...

    def share_step(self, samples: list[int], laid: Sequence[Sequence[OneBatch]], rank: Rank) -> None:
        """Give all ranks what belongs to a step as a whole and not to its parts. laid: this rank's parts. Raises as Rank.agreed."""
        ...

    def prepare_passes(self, batches: Sequence[OneBatch]) -> None:
        """Compute what the passes of these batches need and would be in each other's way for: they come next, at the same time."""
        ...

    def small_batch(self) -> OneBatch:
        """Give a batch of a few tokens, for what libraries do at their first call."""
        ...

    def loss_sum(self, batch: OneBatch, step: int) -> tuple[Tensor, Tensor]:
        """Sum the losses of a micro-batch's labels, a scalar that can be differentiated; and what `measures` names."""
        ...

    def lighter(self, settings: Settings) -> PartialSettings:
        """Name settings under which a sample alone needs less memory; none where nothing is left."""
        ...

    def adopt(self, settings: PartialSettings) -> None:
        """Compute from now on under settings that `lighter` named."""
        ...

    def state(self) -> dict[str, Tensor]:
        """Return the live tensors beside the artifact that influence later steps."""
        ...


AnyTask = Task[Any]
