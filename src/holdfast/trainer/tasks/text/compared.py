"""The loss of answers that are held against each other, micro-batch by micro-batch: log-probabilities of sequences, reference, drift."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast.config.objectives import ObjectiveKind
from holdfast.config.settings import Settings
from holdfast.data.token_set.token_set import sequences
from holdfast.run.sampling.shuffle import Rows
from holdfast.trainer.common.decoder import table_of_positions
from holdfast.trainer.common.oom import tag_out_of_memory
from holdfast.trainer.distributed.rank import Rank
from holdfast.trainer.tasks.text.forward import Forward
from holdfast.trainer.tasks.text.objective import Objective, SequenceScores
from holdfast.trainer.tasks.text.packing import Row, TextBatch, assemble, on_device
from holdfast.trainer.tasks.text.reference import Portions, StoredValues, Values


class SequenceGroup:
    """The samples of one step, which share a drift; it is computed when the first of their micro-batches asks for it."""

    def __init__(self, numbers: list[int], budget: int) -> None:
        self.numbers, self.budget = numbers, budget
        self.drift: Tensor | None = None


class ComparedLoss:
    """An objective on a model. folder: where reference values are kept; without one they are computed each time. held: in the file's name,
    where frozen weights are held otherwise than the config says: under those the reference is another one.

    order: the rows of the first epoch, of which those that stand together are scored together; each alone where there is none. budgets:
    reads the tokens that are scored together at each place of it; as in the settings where there is none.
    start: the values that what is trained began with, where these are the reference. trial: whether values are read there and none kept.
    """

    order: Rows | None = None
    budgets: Callable[[], Rows] | None = None
    start: StartValues | None = None
    trial = False

    def __init__(
        self, task: Forward, objective: Objective, kind: ObjectiveKind, settings: Settings, folder: Path | None, held: str = ""
    ) -> None:
        self.task, self.objective, self.kind = task, objective, kind
        self.width = 2 if kind.rows == "pairs" else 1
        self.budget = settings.micro_batch_tokens
        self.file = folder / f"reference-{settings.dtype}-{settings.attention}{held}.bin" if folder else None

    def __call__(self, batch: TextBatch, group: SequenceGroup, step: int) -> tuple[Tensor, Tensor]:
        """Return (sum of the samples' losses, what was measured: [measures])."""
        task = self.task
        self.follow(group.budget)
        self.score(list(batch.numbers))
        reference = self.values.of(list(batch.numbers)) if self.kind.reference else None
        drift = self._drift(group) if self.kind.drift else None
        task.enter(batch, step)
        with task.keeping():
            logps = task.losses.scores(batch) if self.kind.scores else sums(task.losses.each(batch)[0], batch)
        counts, good = (on_device(torch.tensor(values), logps.device) for values in (batch.counts, batch.good))
        weights = None if batch.weights is None else on_device(torch.tensor(batch.weights), logps.device)
        return self.objective.of(SequenceScores(logps, reference, counts, good, weights, drift))

    def score(self, numbers: list[int]) -> None:
        """Have the log-probabilities of samples under the reference, where the objective needs them: the first time, and nobody waits."""
        if self.kind.reference:
            self.values.compute(numbers, self._of_portion)

    def follow(self, budget: int) -> None:
        """Cut anew what is to be scored together where micro-batches have become others, as memory ran out."""
        if self.kind.reference and budget != self.budget and self.budgets is not None:
            self.budget = budget
            self.values.cut(self._portions())

    def _portions(self) -> Portions:
        order = np.empty(0, np.int64) if self.order is None else self.order
        budget = self.budget if self.budgets is None or self.order is None else self.budgets()
        return Portions(order, np.diff(self.task.tokens.starts), budget, self.task.packing)

    @cached_property
    def values(self) -> Values:
        tokens, portions = self.task.tokens, self._portions()
        stored = StoredValues(self.file, len(tokens), self.trial) if self.file else None
        return Values(portions, stored, len(tokens), self.width, self.task.device)

    def _of_portion(self, numbers: list[int]) -> Tensor:
        return self._scores([part for number in numbers for part, _ in sequences(*self.task.tokens.row(number))], without=True)

    def _drift(self, group: SequenceGroup) -> Tensor:
        """Estimate how much likelier the model makes answers to other prompts than the reference does: a mean, at least 0."""
        if group.drift is None:
            apart = self._apart(mixed([self._first(number) for number in group.numbers], self.longest), group.budget)
            group.drift = torch.cat(apart).mean().clamp_min(0.0) if apart else torch.zeros((), device=self.task.device)
        return group.drift

    def share_drift(self, samples: list[int], laid: Sequence[Sequence[TextBatch]], rank: Rank) -> None:
        """Give this rank's micro-batches the drift of the whole step, of which each rank measures the rows of its own parts.

        samples: of the step, whose order says which answer a prompt is given, as where one process has them all.
        """
        pairs = [*zip(samples, [*samples[1:], *samples[:1]], strict=True)]
        after: dict[int, list[int]] = {}  # several, of a sample that is there twice: at the end of an epoch
        for number, other in dict.fromkeys(pairs):
            after.setdefault(number, []).append(other)

        def measure() -> list[tuple[int, int, float]]:
            found: list[tuple[int, int, float]] = []
            for part in laid if len(samples) > 1 else ():
                if part and (group := part[0].group):
                    with tag_out_of_memory(part[0]):
                        asked = [(number, other) for number in group.numbers for other in after[number]]
                        rows = [_mix(self._first(number), self._first(other), self.longest) for number, other in asked]
                        apart = torch.cat(self._apart(rows, group.budget)).tolist()
                        found += ((*pair, value) for pair, value in zip(asked, apart, strict=True))
            return found

        _, every = rank.agreed(measure, lambda found: {"drift": found})
        # JSON has no NaN
        of = {(number, other): math.nan if value is None else value for one in every for number, other, value in one["drift"]}
        drift = torch.tensor([of[pair] for pair in pairs] if of else [0.0], device=self.task.device).mean().clamp_min(0.0)
        for batch in (batch for part in laid for batch in part):
            if batch.group is not None:
                batch.group.drift = drift

    @cached_property
    def longest(self) -> int | None:
        """The most tokens that a prompt and another's answer may have."""
        return table_of_positions(self.task.model, self.task.losses.prefix)

    def _first(self, number: int) -> Row:
        return sequences(*self.task.tokens.row(number))[0][0]

    def _apart(self, rows: list[Row], budget: int) -> list[Tensor]:
        """Compute how much likelier the model makes each row than the reference does, a portion at a time."""
        return [self._scores(part) - self._scores(part, without=True) for part in _portions(rows, budget)]

    @torch.no_grad()
    def _scores(self, rows: list[Row], without: bool = False) -> Tensor:
        """Compute log-probabilities of sequences in one micro-batch, dropout off: [rows]. without: by the model before training."""
        task = self.task
        was = task.model.training
        task.model.eval()
        numbers = tuple(range(len(rows)))
        batch = assemble(rows, numbers, ("",) * len(rows), task.tokens.pad, task.packing, task.device)
        try:
            with self._before_training() if without else nullcontext():
                task.enter(batch, 0)
                return sums(task.losses.each(batch)[0], batch).float()
        finally:
            task.model.train(was)

    def _before_training(self) -> AbstractContextManager[None]:
        """Return the context in which the model is the reference."""
        if self.start is None:
            return switched_off(self.task.model, self.task.losses)
        return self.start.in_place_of(self.task.trained)


class StartValues:
    """Values of what is trained, as it was before training, in one block of main memory.

    block: one number for each of `trained`, in its order. values: parts of the block, by name, which may be written to.
    """

    def __init__(self, block: Tensor, trained: Mapping[str, Tensor]) -> None:
        self._block = block
        self._shapes = {name: tensor.shape for name, tensor in trained.items()}
        self.values = self._parts(block)

    @classmethod
    def copied(cls, trained: Mapping[str, Tensor]) -> StartValues:
        """Copy what is trained, as it is now."""
        block = torch.cat([tensor.detach().reshape(-1).cpu() for tensor in trained.values()])
        return cls(block.pin_memory() if any(tensor.is_cuda for tensor in trained.values()) else block, trained)

    def _parts(self, block: Tensor) -> dict[str, Tensor]:
        pieces = torch.split(block, [shape.numel() for shape in self._shapes.values()])
        return {name: piece.view(shape) for (name, shape), piece in zip(self._shapes.items(), pieces, strict=True)}

    @contextmanager
    def in_place_of(self, live: Mapping[str, Tensor]) -> Iterator[None]:
        """Compute with these values within the context. The live ones stay where they are, because a snapshot may be copying them.

        Nobody waits: they go to a card in one copy.
        """
        kept = {name: tensor.data for name, tensor in live.items()}
        there = self._parts(self._block.to(next(iter(live.values())).device, non_blocking=True))
        try:
            for name, tensor in live.items():
                tensor.data = there[name]
            yield
        finally:
            for name, tensor in live.items():
                tensor.data = kept[name]


@contextmanager
def switched_off(model: Any, losses: Any) -> Iterator[None]:
    """Compute without what the adapter adds to the model within the context."""
    tuner = model.base_model if hasattr(model, "peft_config") and hasattr(model.base_model, "disable_adapter_layers") else None
    try:
        if tuner is not None:
            tuner.disable_adapter_layers()
        with losses.without_prefix():
            yield
    finally:
        if tuner is not None:
            tuner.enable_adapter_layers()


def sums(losses: Tensor, batch: TextBatch) -> Tensor:
    """Sum the log-probability of each sequence's answer: [sequences]. losses: cross-entropies of the batch's labels, in its order."""
    return -torch.stack([part.sum() for part in torch.split(losses, list(batch.counts))])


def mixed(rows: list[Row], longest: int | None = None) -> list[Row]:
    """Give each prompt the answer to the next one, cut to `longest` tokens of both; empty for a single row."""
    return [_mix(row, rows[(at + 1) % len(rows)], longest) for at, row in enumerate(rows)] if len(rows) > 1 else []


def _mix(prompt: Row, answer: Row, longest: int | None) -> Row:
    """Join the first row's prompt with the second one's answer."""
    first, second = int(prompt[1].argmax()), int(answer[1].argmax())
    ids = np.concatenate([prompt[0][:first], answer[0][second:]])
    return ids[:longest], np.concatenate([prompt[1][:first], answer[1][second:]])[:longest]


def _portions(rows: list[Row], budget: int) -> Iterator[list[Row]]:
    """Yield the rows in order, as many at once as fit into a budget of tokens."""
    portion: list[Row] = []
    for row in rows:
        if portion and sum(len(ids) for ids, _ in portion) + len(row[0]) > budget:
            yield portion
            portion = []
        portion.append(row)
    if portion:
        yield portion
