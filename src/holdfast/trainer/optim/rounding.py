"""Round fp32 to bf16 up or down at random, with the probability that keeps the mean. The randomness is a hash: a replay rounds alike.

Rounding to nearest loses every update below half a unit of the last place, a 512th of the weight; at usual rates that is nearly all of
them. Rounded this way a weight takes one in so many of them whole (Gupta et al. 2015, arXiv 1502.02551).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from holdfast.trainer.common.hashed_bits import GOLDEN, mix_, words_of

_HIDDEN = 0xFFFF  # the bits of fp32 that bf16 has not


class StochasticRounder:
    """Widens stretches of a block of bf16, at most so long, and rounds them back. Its memory is taken once: no update can run out of it."""

    def __init__(self, seed: int, stretch: int, device: torch.device) -> None:
        self.seed = seed
        pairs = (stretch + 1) // 2  # a word of the hash decides on two numbers
        self._column = torch.arange(pairs, dtype=torch.int32, device=device).mul_(GOLDEN)
        self._words, self._spare = torch.empty_like(self._column), torch.empty_like(self._column)
        self._wide, self._gradient = torch.empty(2 * pairs, device=device), torch.empty(2 * pairs, device=device)

    @contextmanager
    def widened(self, weights: Tensor, gradient: Tensor, update: int, number: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the weights and gradient of stretch `number` in fp32; round what they become into `weights` as fits this `update`."""
        size = len(weights)
        wide, slope = self._wide[:size], self._gradient[:size]
        wide.copy_(weights)
        slope.copy_(gradient)
        yield wide, slope
        self._round(weights, wide, slope.view(torch.int32), self._drawn(update, number)[:size])

    def _drawn(self, update: int, number: int) -> Tensor:
        """Draw 16 random bits, int16, for each number of a stretch."""
        first, second = words_of(self.seed, update, f"stretch {number}")
        words = mix_(torch.add(self._column, second, out=self._words), self._spare)
        return mix_(words.bitwise_xor_(first), self._spare).view(torch.int16)

    @staticmethod
    def _round(narrow: Tensor, wide: Tensor, room: Tensor, drawn: Tensor) -> None:
        """Add the drawn bits to those that are cut off. A float is sign and magnitude: what is carried makes it larger, either way."""
        room.copy_(drawn).bitwise_and_(_HIDDEN)
        wide.view(torch.int32).add_(room).bitwise_and_(~_HIDDEN)
        narrow.copy_(wide)
