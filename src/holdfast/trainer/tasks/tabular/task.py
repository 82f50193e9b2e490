"""Task `tabular`: what the loop asks of a network on tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.base.files import Json
from holdfast.config.config import Config
from holdfast.config.settings import PartialSettings, Settings
from holdfast.config.table import columns_of, network_of
from holdfast.run.artifact import Artifact
from holdfast.run.folder import RunFolder
from holdfast.run.sampling.shuffle import Rows
from holdfast.run.sampling.step_table import StepTable
from holdfast.tables.table.table_set import HELD_OUT, TRAINING, TableSet, load_table
from holdfast.trainer.common.batch import Batch
from holdfast.trainer.distributed.rank import Rank
from holdfast.trainer.model.layers.dropout import StepContext
from holdfast.trainer.protocol.step_hooks import StepHooks
from holdfast.trainer.protocol.task import Asked, DataSet, Task
from holdfast.trainer.tasks.tabular.evaluation import measured
from holdfast.trainer.tasks.tabular.losses import RowLoss
from holdfast.trainer.tasks.tabular.network import about, new_network

_SMALL = 8  # rows


@dataclass(frozen=True)
class TableRows:
    """A table as the loop sees it: a row is one label, and as long as any other."""

    table_set: TableSet
    table: StepTable
    held_out: Rows

    @cached_property
    def sizes(self) -> Rows:
        """1 for each row: a micro-batch counts rows."""
        return np.broadcast_to(np.int64(1), (len(self.table_set),))

    def source(self, number: int) -> str:
        """Return the file and line of a row."""
        return self.table_set.source(number)


@dataclass(frozen=True)
class RowBatch(Batch):
    """inputs [rows, numbers], codes [rows, categories], targets [rows], their numbers as int32: all on the device."""

    inputs: Tensor
    codes: Tensor
    targets: Tensor
    rows: Tensor


class Tabular:
    """A network of which every weight is trained."""

    def __init__(self, config: Config, table: TableSet, device: torch.device) -> None:
        self.config, self.table, self.device = config, table, device
        self.context = StepContext(config.train.seed)
        self.loss = RowLoss(columns_of(config), table.form.target, device)
        self.model: nn.Module = new_network(config, table.form, self.loss.outputs, self.context).to(device)
        self.artifact: dict[str, Tensor] = dict(self.model.named_parameters())
        self.step_hooks = StepHooks()
        self.form = Artifact("network", about(config, table.form))
        rows = StepTable(table.rows_of(TRAINING), config.train.effective_batch, config.train.seed)
        self.data: DataSet = TableRows(table, rows, table.rows_of(HELD_OUT))

    @classmethod
    def settle(cls, config: Config, settings: Settings) -> tuple[PartialSettings, str]:
        return {}, ""

    @classmethod
    def look_first(cls, run: RunFolder, config: Config) -> Iterator[tuple[str, Json]]:
        return iter(())

    @classmethod
    def build(cls, run: RunFolder, config: Config, settings: Settings, device: torch.device, trial: bool = False) -> Tabular:
        return cls(config, load_table(run.data_file), device)

    @classmethod
    def evaluate(cls, run: RunFolder, config: Config, settings: Settings, asked: Asked) -> Json:
        return measured(run, config, settings, asked)

    @property
    def measures(self) -> tuple[str, ...]:
        return ("token_accuracy",)

    @property
    def facts(self) -> Json:
        return {"network": network_of(self.config).kind, "loss": self.loss.name}

    def remarks(self, fresh: bool) -> Iterator[tuple[str, Json]]:
        return iter(())

    def prove(self) -> tuple[PartialSettings, str]:
        """Return no change: no layer looks at other rows, and no kernel stands in for torch's own."""
        return {}, ""

    def refuse(self, samples: list[int], step: int) -> None:
        """Do nothing: every row has a label."""

    def batches(self, samples: list[int], budget: int) -> list[RowBatch]:
        return [self._batch(samples[start : start + budget]) for start in range(0, len(samples), budget)]

    def prepare(self, samples: list[int], budget: int) -> None:
        """Do nothing: a micro-batch is gathered faster than a step waits."""

    def share_step(self, samples: list[int], laid: Sequence[Sequence[RowBatch]], rank: Rank) -> None:
        """Do nothing: a row's loss is its own."""

    def prepare_passes(self, batches: Sequence[RowBatch]) -> None:
        """Do nothing: a pass needs its rows alone."""

    def small_batch(self) -> RowBatch:
        return self._batch(self.data.table.rows[:_SMALL].tolist())

    def loss_sum(self, batch: RowBatch, step: int) -> tuple[Tensor, Tensor]:
        self.enter(batch, step)
        outputs = self.model(batch.inputs, batch.codes)
        return self.loss(outputs, batch.targets).sum(), self.loss.right(outputs.detach(), batch.targets)

    def enter(self, batch: RowBatch, step: int) -> None:
        """Tell dropout which rows the next forward pass is about; each member of an ensemble is a position of its own."""
        network = network_of(self.config)
        if network.kind != "tabm":
            self.context.enter(step, batch.rows, torch.zeros_like(batch.rows))
            return
        rows = batch.rows[:, None].expand(-1, network.members)
        self.context.enter(step, rows, torch.arange(network.members, device=self.device).expand_as(rows))

    def lighter(self, settings: Settings) -> PartialSettings:
        return {}

    def adopt(self, settings: PartialSettings) -> None:
        """Do nothing: `lighter` names no settings."""

    def state(self) -> dict[str, Tensor]:
        """Return nothing: dropout is a hash of step and row, and the order of rows follows from the seed."""
        return {}

    def _batch(self, numbers: list[int]) -> RowBatch:
        table, count = self.table, len(numbers)
        return RowBatch(
            numbers=tuple(numbers),
            sources=tuple(map(table.source, numbers)),
            lengths=(1,) * count,
            size=count,
            labels=count,
            inputs=torch.from_numpy(table.inputs[numbers]).to(self.device, non_blocking=True),
            codes=torch.from_numpy(table.codes[numbers]).to(self.device, torch.int64, non_blocking=True),
            targets=torch.from_numpy(table.target[numbers]).to(self.device, non_blocking=True),
            rows=torch.tensor(numbers, dtype=torch.int32, device=self.device),
        )


TASK: type[Task[RowBatch]] = Tabular
