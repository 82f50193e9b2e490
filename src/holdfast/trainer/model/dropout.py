"""Dropout whose mask is a function of (seed, step, module, sample, position, feature). Holds no generator and no state.

So a mask does not change with the micro-batch a sample falls into, with a restart, with recomputation, or with the device: 32-bit
integer arithmetic gives the same bits everywhere. The mixing is the finaliser of MurmurHash3 (Austin Appleby, public domain); each of its
words decides on two features, so p counts in steps of 1 / 65,536.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_M1, _M2 = -2048144789, -1028477387  # 0x85EBCA6B, 0xC2B2AE35 as signed 32-bit
_STEPS = 1 << 16
_GOLDEN = -1640531527  # 0x9E3779B9


class StepContext:
    """Which samples and positions the tensors of the current micro-batch stand for. One for all dropout modules of a model."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.step = 0
        self.rows: Tensor | None = None
        self.lengths: tuple[int, ...] | None = None
        self.ends: Tensor | None = None
        self.names: list[str] = []  # of the dropout modules, in order
        self.keys: Tensor | None = None
        self._keys_of: int | None = None

    def keep_keys(self, device: torch.device) -> None:
        """From now on, have each module's two words on the device, for kernels that draw masks: `keys` [modules, 2] int32.

        They stay in one place, whose content changes with the step: a recording of one step can be played for another.
        """
        self.keys = torch.zeros(len(self.names), 2, dtype=torch.int32, device=device)
        self._put_keys(self.keys)

    def _put_keys(self, place: Tensor) -> None:
        self._keys_of = self.step
        if self.names:
            words = torch.from_numpy(np.array([_words(self.seed, self.step, name) for name in self.names], np.int32))
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
        self.step = step
        self.lengths, self.ends = lengths, ends
        if self.keys is not None and self._keys_of != step:
            self._put_keys(self.keys)
        self.rows = _mix(_mix(samples.to(torch.int32) + _GOLDEN) ^ positions.to(torch.int32))


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
        """Shape [*rows, features] in and out; `rows` must be the micro-batch's shape. Raises ValueError when it is not."""
        keep = self.mask(x)
        return x if keep is None else x * keep.to(x.dtype).mul_(1.0 / self.share)

    def mask(self, x: Tensor) -> Tensor | None:
        """True where an element of `x` stays; None where nothing is dropped."""
        rows = self.rows(x)
        return None if rows is None else self.keep(rows, x.shape[-1])

    def rows(self, x: Tensor) -> Tensor | None:
        """The micro-batch's hashes, a word for each row of `x`; None where nothing is dropped."""
        if not self.training or self.p == 0.0:
            return None
        rows = self.context.rows
        if rows is None or rows.shape != x.shape[:-1]:
            known = None if rows is None else tuple(rows.shape)
            raise ValueError(f"dropout {self.name}: input {tuple(x.shape)} does not follow the micro-batch's tokens {known}")
        return rows

    def keep(self, rows: Tensor, features: int) -> Tensor:
        """The mask: True where an element stays. Shape [*rows, features]."""
        first, second = _words(self.context.seed, self.context.step, self.name)
        pairs = torch.arange((features + 1) // 2, dtype=torch.int32, device=rows.device)
        column = _mix(pairs.mul_(_GOLDEN).add_(second))
        mixed = _mix_((_mix(rows ^ first)).unsqueeze(-1) ^ column)
        return mixed.view(torch.int16)[..., :features] >= self.dropped - _STEPS // 2

    def extra_repr(self) -> str:
        return f"p={self.p}"


def words_of_positions(context: StepContext, name: str, width: int, features: int) -> Tensor:
    """A 32-bit word for each feature of the last `width` positions of the micro-batch's rows: int32 [rows, width, features]."""
    assert context.rows is not None
    first, second = _words(context.seed, context.step, name)
    rows = context.rows[:, -width:]
    column = _mix(torch.arange(features, dtype=torch.int32, device=rows.device).mul_(_GOLDEN).add_(second))
    return _mix_(_mix(rows ^ first).unsqueeze(-1) ^ column)


def _words(seed: int, step: int, name: str) -> tuple[int, int]:
    """Two signed 32-bit numbers from (seed, step, module)."""
    digest = hashlib.blake2b(f"{seed} {step} {name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little", signed=True), int.from_bytes(digest[4:], "little", signed=True)


def _mix(value: Tensor) -> Tensor:
    return _mix_(value.clone())


def _mix_(value: Tensor) -> Tensor:
    """MurmurHash3's finaliser on int32, in place. The masks make the shifts logical: an arithmetic one would clear the sign bit."""
    value ^= (value >> 16).bitwise_and_(0xFFFF)
    value *= _M1
    value ^= (value >> 13).bitwise_and_(0x7FFFF)
    value *= _M2
    value ^= (value >> 16).bitwise_and_(0xFFFF)
    return value


def make_stateless(model: nn.Module, context: StepContext) -> list[str]:
    """Replace every nn.Dropout of a model (its own and its adapter's) in place; the names of those replaced."""
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
