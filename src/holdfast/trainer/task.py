"""The protocol between the loop and what it trains. The loop knows nothing of text or tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from holdfast.core.config.config import Config
from holdfast.core.files import Json
from holdfast.core.order.shuffle import Rows
from holdfast.core.order.step_table import StepTable
from holdfast.core.run.folder import RunFolder
from holdfast.core.run.timeline import Settings

Asked = Callable[[int], None]  # is told how many rows a model was just asked for; 0: it has computed one more token


@dataclass(frozen=True)
class Batch:
    """One micro-batch of the samples `numbers`. lengths: tokens of each; size: tokens it computes, padding included.

    labels: how many of them are learned.
    """

    numbers: tuple[int, ...]
    sources: tuple[str, ...]
    lengths: tuple[int, ...]
    size: int
    labels: int

    @property
    def tokens(self) -> int:
        """Tokens of its samples, without padding."""
        return sum(self.lengths)


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
        """Where a row stands: file and line."""
        ...


class Task(Protocol[OneBatch]):
    """What is trained: its rows, its parameters, its micro-batches, its loss, and everything of it that a snapshot must hold."""

    data: DataSet
    model: nn.Module
    artifact: dict[str, Tensor]
    adapter_config: Json

    @classmethod
    def settle(cls, config: Config, settings: Settings) -> tuple[Settings, str]:
        """Settings that this machine is better off with, and why, before anything is built; nothing where they are right."""
        ...

    @classmethod
    def build(cls, run: RunFolder, config: Config, settings: Settings, device: torch.device) -> Task[OneBatch]:
        """The task before its first step: it follows from the run's data, config and settings alone."""
        ...

    @classmethod
    def evaluate(cls, run: RunFolder, config: Config, settings: Settings, asked: Asked) -> Json:
        """Load the finished artifact afresh and measure it on the held-out rows: what evaluation.json says."""
        ...

    @property
    def facts(self) -> Json:
        """How it computes, for the event of an attempt's begin."""
        ...

    def remarks(self, fresh: bool) -> Iterator[tuple[str, Json]]:
        """(kind, facts) of events that an attempt begins with. fresh: no step was trained before."""
        ...

    def prove(self) -> tuple[Settings, str]:
        """Settings that have to change, and why, because what they ask for computes something else here. Moves no weight."""
        ...

    def refuse(self, samples: list[int], step: int) -> None:
        """Raise Refusal where these samples cannot make a step."""
        ...

    def batches(self, samples: list[int], budget: int) -> list[OneBatch]:
        """Micro-batches of these samples, none larger than `budget` tokens unless one sample alone is."""
        ...

    def prepare(self, samples: list[int], budget: int) -> None:
        """Lay out now what `batches` will be asked for next."""
        ...

    def small_batch(self) -> OneBatch:
        """A few tokens, for what libraries do at their first call."""
        ...

    def loss_sum(self, batch: OneBatch, step: int) -> tuple[Tensor, Tensor]:
        """(the sum of the losses of a micro-batch's labels, a scalar that can be differentiated; how many of them are predicted right)"""
        ...

    def lighter(self, settings: Settings) -> Settings:
        """Settings under which a sample alone needs less memory; nothing where none are left."""
        ...

    def adopt(self, settings: Settings) -> None:
        """Compute under settings that `lighter` named from now on."""
        ...

    def state(self) -> dict[str, Tensor]:
        """Tensors beside the artifact that influence later steps (live)."""
        ...


AnyTask = Task[Any]
