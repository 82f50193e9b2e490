"""Which rows an epoch draws when it is not simply every row once: a part of them, or sources with weights. Pure.

Rows fall into strata (source file, length). Each stratum is an endless stream: its rows in a new random order, pass after pass. The
streams run at their rates (rows times weight) and are merged by the time at which a row is due; epoch e is the e-th stretch of `size`
rows of that. So every stretch has the same mix to within a row or two of each stratum; without weights a row comes again only after
all others came; and any epoch follows from its number, without the epochs before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from holdfast.run.sampling.shuffle import Rows, Stream, fractions, permutation


@dataclass(frozen=True)
class Mixture:
    """`strata`: positions of the training rows of each; `rates`: how many of them are due per unit of time; `size`: rows per epoch."""

    size: int
    strata: tuple[Rows, ...]
    rates: tuple[float, ...]
    seed: int

    def drawn(self, epoch: int) -> Rows:
        """Return the positions of the rows of epoch `epoch` (from 0), stratum by stratum."""
        first, margin, total = epoch * self.size, len(self.strata) + 1, sum(self.rates)
        early, late = max(0.0, (first - margin) / total), (first + self.size + margin) / total
        offsets = fractions(len(self.strata), self.seed, Stream.MIXTURE_OFFSETS)
        begins = [max(0, int(np.ceil(early * rate - offset))) for rate, offset in zip(self.rates, offsets, strict=True)]
        ends = [int(np.ceil(late * rate - offset)) for rate, offset in zip(self.rates, offsets, strict=True)]
        due = [(np.arange(b, e) + o) / r for b, e, o, r in zip(begins, ends, offsets, self.rates, strict=True)]
        of = np.repeat(np.arange(len(due)), [len(times) for times in due])
        merged = of[np.argsort(np.concatenate(due), kind="stable")]
        skipped = first - sum(begins)  # due before this epoch, though listed
        before = np.bincount(merged[:skipped], minlength=len(due))
        taken = np.bincount(merged[skipped : skipped + self.size], minlength=len(due))
        return np.concatenate([self._of(s, begins[s] + int(before[s]), int(taken[s])) for s in range(len(due))])

    def _of(self, stratum: int, begin: int, count: int) -> Rows:
        """Return rows `begin` to `begin + count` of a stratum's stream."""
        rows = self.strata[stratum]
        parts = [rows[:0]]
        for number in range(begin // len(rows), (begin + count - 1) // len(rows) + 1 if count else 0):
            order = rows[permutation(len(rows), self.seed, Stream.STRATA + stratum * 2**32 + number)]
            start = number * len(rows)
            parts.append(order[max(0, begin - start) : begin + count - start])
        return np.concatenate(parts)


def make_mixture(sources: npt.NDArray[np.int32], lengths: Rows, weights: list[float], size: int, seed: int) -> Mixture:
    """Make a mixture of training rows with these source numbers and lengths in tokens (a stratum's lengths lie between two powers of 2).

    `weights`: of each source, relative to its number of rows; `size`: rows per epoch.
    """
    kinds = sources.astype(np.int64) * 64 + np.frexp(lengths)[1]
    order = np.argsort(kinds, kind="stable").astype(np.int64)
    names, counts = np.unique(kinds, return_counts=True)
    strata = tuple(np.split(order, np.cumsum(counts)[:-1]))
    return Mixture(size, strata, tuple(float(count * weights[name // 64]) for name, count in zip(names, counts, strict=True)), seed)
