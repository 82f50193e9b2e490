"""One micro-batch's part of a real training step, of shapes alone: the task, the optimizer, gate and update as a run has them."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from holdfast.base_model.folder import ModelFacts
from holdfast.config.config import Config
from holdfast.config.objectives import OBJECTIVES
from holdfast.config.settings import Settings
from holdfast.data.tokens.token_set import TokenSet
from holdfast.data.tokens.worse import WORSE
from holdfast.trainer.model.head import OutputHead
from holdfast.trainer.model.on_card import trace_for
from holdfast.trainer.optim.choose import optimizer_of
from holdfast.trainer.optim.optimizer import Elementwise, FlatOptimizer
from holdfast.trainer.step import compute_gradients, update
from holdfast.trainer.tasks.sft.task import Sft
from holdfast.trainer.traced.ledger import Ledger, Log
from holdfast.trainer.traced.stand_in import stand_in

HEAD = "output layer"  # where logits are made


@dataclass(frozen=True)
class Traced:
    """A step's log and what its blocks are for. kinds: of those that were there before the step, by number.

    total, trainable: parameters; layers: that can be computed again.
    """

    log: Log
    kinds: dict[int, str]
    total: int
    trainable: int
    layers: int


def trace(model: ModelFacts, config: Config, settings: Settings, lengths: list[int], labels: int) -> Traced:
    """Trace a step of samples of these `lengths`, of whose tokens `labels` are learned, in micro-batches as the settings have them."""
    stand_in(model)
    trace_for(settings.device == "cuda")
    device = torch.device("cpu")
    rows = made_rows(lengths, labels, config.train.objective)
    inside = _Inside()
    with (
        FakeTensorMode(allow_non_fake_inputs=True),
        Ledger(
            inside.where,
            padded=not settings.packing and len(set(lengths)) > 1,
            threads=0 if settings.device == "cuda" else settings.threads,
        ) as ledger,
    ):
        task = Sft(config, settings, rows, device)
        if task.losses.head:
            task.losses.head.fused = False  # its kernel needs less, and a start may leave it out
        optimizer = optimizer_of(task.artifact, config.train, task.step_hooks.rates)
        _leave_out_alike(optimizer)
        inside.names = {id(module): name for name, module in task.model.named_modules()}
        gc.collect()
        kinds = _before(ledger, task, optimizer)
        ledger.log.mark("step")

        def announce(phase: str, *_: Any) -> float:
            inside.phase = phase
            ledger.log.mark(phase)
            return 1.0

        with inside.watched(ledger.log):
            computed = compute_gradients(task, optimizer, 1, list(range(len(lengths))), settings.micro_batch_tokens, announce)
            ledger.log.mark("update")
            task.step_hooks.before()
            update(optimizer, computed, 1e-3, 0.5)
        ledger.log.mark("end")
    parameters = {id(parameter): parameter for parameter in task.model.parameters()}.values()
    trainable = sum(parameter.numel() for parameter in task.artifact.values())
    return Traced(ledger.log, kinds, _counted(parameters, trainable), trainable, task.layers)


def _leave_out_alike(optimizer: FlatOptimizer) -> None:
    """Leave two stretches of each length to be updated: none takes memory that outlives it, and a full fine-tune has thousands."""
    if isinstance(optimizer, Elementwise):
        lengths = itertools.groupby(optimizer.stretches, key=lambda stretch: stretch[1] - stretch[0])
        optimizer.stretches = [stretch for _, alike in lengths for stretch in itertools.islice(alike, 2)]


def _counted(parameters: Any, trainable: int) -> int:
    frozen = (getattr(parameter, "of_shape", parameter.shape) for parameter in parameters if not parameter.requires_grad)
    return int(sum(shape.numel() for shape in frozen)) + trainable  # of weights in 4 bits, two lie in a byte


def _before(ledger: Ledger, task: Sft, optimizer: FlatOptimizer) -> dict[int, str]:
    """What each block is for that is there before the step."""
    kinds = dict.fromkeys(ledger.numbers.values(), "workspace")
    named = [("weights", tensor) for tensor in (*task.model.parameters(), *task.model.buffers())]
    named += [("optimizer", tensor) for tensor in (*optimizer.kept().values(), *optimizer.state().values())]
    named += [("adapter", optimizer.weights), ("gradients", optimizer.gradient)]
    for kind, tensor in named:
        number = ledger.number(tensor)
        if number is not None:
            kinds[number] = kind
    return kinds


class _Inside:
    """Which module the step is in; in backward, the end of what is computed again."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.stack: list[str] = []
        self.phase = ""

    def where(self) -> str:
        return next((name for name in reversed(self.stack) if name), "")

    @contextmanager
    def watched(self, log: Log) -> Iterator[None]:
        def enter(module: nn.Module, _given: Any) -> None:
            if not self.stack and self.phase == "backward":
                log.mark("again")
            name = self.names.get(id(module), "")
            self.stack.append(HEAD if name.endswith("lm_head") else name)

        def leave(_module: nn.Module, _given: Any, _out: Any) -> None:
            self.stack.pop()
            if not self.stack and self.phase == "backward":
                log.mark("kept again")

        def losses(head: OutputHead, *given: Any) -> Any:
            self.stack.append(HEAD)
            try:
                return of_head(head, *given)
            finally:
                self.stack.pop()

        of_head = OutputHead.losses
        OutputHead.losses = losses  # type: ignore[method-assign,assignment]
        hooks = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave, always_call=True)]
        try:
            yield
        finally:
            OutputHead.losses = of_head  # type: ignore[method-assign]
            for hook in hooks:
                hook.remove()


def made_rows(lengths: list[int], labels: int, objective: str = "sft") -> TokenSet:
    """Rows of so many tokens, of which the last are learned: the rows' shares of `labels` are in proportion to their lengths.

    Where an objective takes pairs, a row's first half is its better answer with its prompt, the second the worse one.
    """
    paired = OBJECTIVES[objective].rows == "pairs"
    parts = [part for length in lengths for part in ((length - length // 2, length // 2) if paired else (length,))]
    tokens = sum(parts)
    learned = np.zeros(tokens, np.uint8)
    able = tokens - len(parts)  # a first token is never learned
    left = min(labels, able)
    for at, (end, length) in enumerate(zip(np.cumsum(parts), parts, strict=True)):
        share = left if at == len(parts) - 1 else min(left, round(labels * (length - 1) / max(1, able)))
        share = min(share, length - 1)
        learned[end - share : end] = 1
        left -= share
        if paired and at % 2:
            learned[end - length : end] += WORSE
    starts = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    count = len(lengths)
    return TokenSet(np.ones(tokens, np.int32), learned, starts, np.zeros(count, np.int32), np.arange(1, count + 1), ("rows",), 0, 0)
