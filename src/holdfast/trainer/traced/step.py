"""One micro-batch's part of a real training step, of shapes alone: the task, the optimizer, gate and update as a run has them."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from holdfast.base.tasks import kind_of, look_up
from holdfast.base_model.folder import ModelFacts
from holdfast.config.config import Config
from holdfast.config.settings import Settings
from holdfast.planning.memory.trained_size import is_wrapped
from holdfast.trainer.common.on_card import trace_for
from holdfast.trainer.model.head import OutputHead
from holdfast.trainer.model.load import in_fewer_bits
from holdfast.trainer.model.trained.parts import PartCounts, parts_of
from holdfast.trainer.optim.choose import optimizer_of
from holdfast.trainer.optim.optimizer import Elementwise, FlatOptimizer
from holdfast.trainer.protocol.task import AnyTask
from holdfast.trainer.step.step import compute_gradients, update
from holdfast.trainer.traced.ledger import Ledger, Log
from holdfast.trainer.traced.stand_in import stand_in

HEAD = "output layer"  # where logits are made


@dataclass(frozen=True)
class StepTrace:
    """A step's log and what its blocks are for. kinds: of those that were there before the step, by number.

    total, trainable: parameters; layers: that can be computed again; parts: of the model, and what of them learns.
    """

    log: Log
    kinds: dict[int, str]
    total: int
    trainable: int
    layers: int
    parts: PartCounts


def trace(model: ModelFacts, config: Config, settings: Settings, lengths: list[int], labels: int, cut: bool = False) -> StepTrace:
    """Trace a step of samples of these `lengths`, of whose tokens `labels` are learned, in micro-batches as the settings have them.

    cut: ranks share the frozen layers, which are whole here, so a matrix with the adapter in it is made anew for each product.
    """
    card, device = settings.device == "cuda", torch.device("cpu")
    inside = _Inside()
    padded = not settings.packing and len(set(lengths)) > 1
    ledger = Ledger(inside.where, padded=padded, threads=0 if card else settings.threads)
    in_files = bool(card and config.model and in_fewer_bits(model, settings) is not None)
    stand_in(model, ledger, in_files, cut)
    trace_for(card)
    of_shapes = _made_by(config)
    with FakeTensorMode(allow_non_fake_inputs=True), ledger:
        task, layers = of_shapes(config, settings, lengths, labels, device)
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
    parts = parts_of(task.model, task.artifact, is_wrapped(model))
    return StepTrace(ledger.log, kinds, _counted(parameters, trainable), trainable, layers, parts)


def _made_by(config: Config) -> Callable[..., tuple[AnyTask, int]]:
    """Return what makes a task of shapes of this kind. Raises NotImplementedError where its steps cannot be traced."""
    kind = kind_of(config)
    if kind.traced is None:
        raise NotImplementedError(f"no step of {kind.what} can be traced")
    made: Callable[..., tuple[AnyTask, int]] = look_up(kind.traced)
    return made


def _leave_out_alike(optimizer: FlatOptimizer) -> None:
    """Leave two stretches of each length to be updated: none takes memory that outlives it, and a full fine-tune has thousands."""
    if isinstance(optimizer, Elementwise):
        lengths = itertools.groupby(optimizer.stretches, key=lambda stretch: stretch[1] - stretch[0])
        optimizer.stretches = [stretch for _, alike in lengths for stretch in itertools.islice(alike, 2)]


def _counted(parameters: Any, trainable: int) -> int:
    frozen = (getattr(parameter, "of_shape", parameter.shape) for parameter in parameters if not parameter.requires_grad)
    return int(sum(shape.numel() for shape in frozen)) + trainable  # of weights in 4 bits, two lie in a byte


def _before(ledger: Ledger, task: AnyTask, optimizer: FlatOptimizer) -> dict[int, str]:
    """Name what each block is for that exists before the step."""
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
