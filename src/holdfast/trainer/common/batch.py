"""A micro-batch: which samples, and how many tokens of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Batch:
    """One micro-batch of the samples `numbers`, which stand at `sources`.

    lengths: tokens of each sample; size: tokens it computes, padding included; labels: how many of them are learned.
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

    @property
    def divisor(self) -> float:
        """What the sum of its losses is divided by for a mean: its labels, each as often as it counts."""
        return float(self.labels)

    @property
    def half(self) -> int:
        """The budget in tokens that divides it where it does not fit: half of it, and no less than its longest sample."""
        return max(*self.lengths, self.size // 2)
