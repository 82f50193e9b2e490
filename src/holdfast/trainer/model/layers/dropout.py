"""Dropout whose mask is a function of (seed, step, module, sample, position, feature). Holds no generator and no state.

So a mask does not change with the micro-batch a sample falls into, with a restart, with recomputation, or with the device
(trainer/common/hashed_bits.py). Each word of the hash decides on two features, so p counts in steps of 1 / 65,536.
"""

from __future__ import annotations

from threading import get_ident, local
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.trainer.common.hashed_bits import GOLDEN, mix, mix_, words_of

_STEPS = 1 << 16


class MicroBatch(NamedTuple):
    """`rows`: a hash of each sample and position, int32; `lengths`: of the samples that share one row; `ends`: 0 and where each ends."""

    step: int = 0
    rows: Tensor | None = None
    lengths: tuple[int, ...] | None = None
    ends: Tensor | None = None


class StepContext:
    """Which samples and positions the tensors of the current micro-batch stand for. One for all dropout modules of a model.

    A thread that entered a micro-batch sees its own (`trainer/parts/side_by_side.py`). Any other sees that of the thread that built the
    model: on a card autograd computes layers again in a thread of its own.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.names: list[str] = []  # of the dropout modules, in order
        self.windows = 0  # times that a layer asked packed attention for a sliding window
        self.keys: Tensor | None = None
        self._keys_of: int | None = None
        self._builder, self._shared, self._own = get_ident(), MicroBatch(), local()

    @property
    def now(self) -> MicroBatch:
        """The micro-batch of this thread."""
        own: MicroBatch = getattr(self._own, "batch", self._shared)
        return own

    @property
    def step(self) -> int:
        return self.now.step

    @property
    def rows(self) -> Tensor | None:
        return self.now.rows

    @property
    def lengths(self) -> tuple[int, ...] | None:
        return self.now.lengths

    @property
    def ends(self) -> Tensor | None:
        return self.now.ends

    def keep_keys(self, device: torch.device) -> None:
        """Keep each module's two hash words on the device, for kernels that draw masks: `keys` [modules, 2] int32.

        They stay in one place, whose content changes with the step: a recording of one step can be played for another.
        """
        self.keys = torch.zeros(len(self.names), 2, dtype=torch.int32, device=device)
        self._put_keys(self.keys, self.step)

    def _put_keys(self, place: Tensor, step: int) -> None:
        self._keys_of = step
        if self.names:
            words = torch.from_numpy(np.array([words_of(self.seed, step, name) for name in self.names], np.int32))
            place.copy_(words.pin_memory() if place.is_cuda else words, non_blocking=True)

    def enter(
        self,
        step: int,
        samples: Tensor,
        positions: Tensor,
        lengths: tuple[int, ...] | None = None,
        ends: Tensor | None = None,
    ) -> None:
        """Set the micro-batch: `samples` and `positions` are whole numbers of shape [rows, positions], on the model's device.

        `lengths`: of the samples that share one row; None where each has its own. `ends`: 0 and where each of them ends, int32.
        """
        if self.keys is not None and self._keys_of != step:
            self._put_keys(self.keys, step)
        batch = MicroBatch(step, mix(mix(samples.to(torch.int32) + GOLDEN) ^ positions.to(torch.int32)), lengths, ends)
        if get_ident() == self._builder:
            self._shared = batch
        else:
            self._own.batch = batch


class StatelessDropout(nn.Module):
    """Drops each input element with probability p and scales the rest by 1 / (1 - p), as nn.Dropout does."""

    def __init__(self, p: float, name: str, context: StepContext) -> None:
        super().__init__()
        self.p = p
        self.dropped = round(p * _STEPS)  # of so many elements
        self.share = 1.0 - self.dropped / _STEPS  # of the elements that stay
        self.name = name
        self.context = context
        self.number = len(context.names)
        context.names.append(name)

    def forward(self, x: Tensor) -> Tensor:
        """Drop elements of x [*rows, features]; `rows` must be the micro-batch's shape. Raises ValueError where it is not."""
        keep = self.mask(x)
        return x if keep is None else x * keep.to(x.dtype).mul_(1.0 / self.share)

    def mask(self, x: Tensor) -> Tensor | None:
        """Return the mask of `x`, True where an element stays; None where nothing is dropped."""
        rows = self.rows(x)
        return None if rows is None else self.keep(rows, x.shape[-1])

    def rows(self, x: Tensor) -> Tensor | None:
        """Return the micro-batch's hashes, a word for each row of `x`; None where nothing is dropped.

        Raises ValueError where `x` has other rows than the micro-batch.
        """
        if not self.training or self.p == 0.0:
            return None
        rows = self.context.rows
        if rows is None or rows.shape != x.shape[:-1]:
            known = None if rows is None else tuple(rows.shape)
            raise ValueError(f"dropout {self.name}: input {tuple(x.shape)} does not follow the micro-batch's tokens {known}")
        return rows

    def keep(self, rows: Tensor, features: int) -> Tensor:
        """Draw the mask [*rows, features]: True where an element stays."""
        first, second = words_of(self.context.seed, self.context.step, self.name)
        pairs = torch.arange((features + 1) // 2, dtype=torch.int32, device=rows.device)
        column = mix(pairs.mul_(GOLDEN).add_(second))
        mixed = mix_((mix(rows ^ first)).unsqueeze(-1) ^ column)
        return mixed.view(torch.int16)[..., :features] >= self.dropped - _STEPS // 2

    def extra_repr(self) -> str:
        return f"p={self.p}"


def words_of_positions(context: StepContext, name: str, width: int, features: int) -> Tensor:
    """Hash to int32 [rows, width, features]: a word for each feature of the last `width` positions of the micro-batch's rows."""
    assert context.rows is not None
    first, second = words_of(context.seed, context.step, name)
    rows = context.rows[:, -width:]
    column = mix(torch.arange(features, dtype=torch.int32, device=rows.device).mul_(GOLDEN).add_(second))
    return mix_(mix(rows ^ first).unsqueeze(-1) ^ column)


def make_stateless(model: nn.Module, context: StepContext) -> list[str]:
    """Replace every nn.Dropout of a model (its own and its adapter's) in place; return the names of those replaced."""
    replaced = []
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Dropout):
            parent: Any = model.get_submodule(name.rpartition(".")[0])
            child = StatelessDropout(module.p, name, context)
            child.train(module.training)
            setattr(parent, name.rpartition(".")[2], child) if not isinstance(parent, nn.ModuleDict) else parent.update(
                {name.rpartition(".")[2]: child}
            )
            replaced.append(name)
    return replaced
