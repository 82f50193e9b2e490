"""The step table: the samples of step k, and the learning rate schedule with warmup. Pure: follows from (seed, sizes, k) alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from holdfast.run.sampling.mixture import Mixture
from holdfast.run.sampling.shuffle import Rows, Stream, permutation

_EPOCHS_AHEAD, _SAMPLES_AHEAD, _STEPS_AHEAD = 10, 1 << 20, 16


@dataclass(frozen=True)
class StepTable:
    """`rows` training rows, numbered as in the data set, drawn epoch by epoch in an order that depends on the seed only.

    Epochs follow each other without a gap; only the last step of a run may be smaller than `batch`. Where a run is extended behind such a
    step, all later ones begin as many samples earlier (`behind`). An epoch is every row once, or what the mixture draws for it.
    """

    rows: Rows
    batch: int
    seed: int
    mixture: Mixture | None = None
    _orders: dict[int, Rows] = field(default_factory=dict, repr=False, compare=False)

    def samples(self, step: int, samples_of_run: int, behind: int = 0) -> list[int]:
        """Return the row numbers of step `step` (1-based) of a run of `samples_of_run` samples. Raises IndexError outside the run."""
        first = (step - 1) * self.batch - behind
        end = min(first + self.batch, samples_of_run)
        if not 0 <= first < end:
            raise IndexError(f"step {step} of a run of {samples_of_run} samples in batches of {self.batch}")
        size = self.mixture.size if self.mixture else len(self.rows)
        return [int(self.order(at // size)[at % size]) for at in range(first, end)]

    def largest_step(self, lengths: Rows, samples_of_run: int | None = None) -> tuple[int, int]:
        """Return (step, its tokens) of the step with the most tokens. lengths: tokens of each row; samples_of_run: None is without end.

        Looks at ten epochs, but at no more than a million samples beyond the first; a later step may be a little larger.
        """
        size = self.mixture.size if self.mixture else len(self.rows)
        samples = max(size, min(_EPOCHS_AHEAD * size, _SAMPLES_AHEAD), _STEPS_AHEAD * self.batch)
        samples = min(samples, samples_of_run or samples)
        totals = np.zeros(math.ceil(samples / self.batch))
        for first in range(0, samples, size):
            rows = self.order(first // size)[: samples - first]
            steps = np.arange(first, first + len(rows)) // self.batch
            totals += np.bincount(steps, weights=lengths[rows], minlength=len(totals))
        step = int(totals.argmax())
        return step + 1, int(totals[step])

    def order(self, epoch: int) -> Rows:
        """Return the rows of an epoch, one after the other."""
        if epoch not in self._orders:
            if len(self._orders) > 1:  # a step looks back one epoch at most
                del self._orders[min(self._orders)]
            drawn = self.rows if self.mixture is None else self.rows[self.mixture.drawn(epoch)]
            self._orders[epoch] = drawn[permutation(len(drawn), self.seed, epoch)]
        return self._orders[epoch]


def run_length(rows: int, batch: int, epochs: float | None, steps: int | None, behind: int = 0) -> tuple[int, int]:
    """Return (steps, samples) of a run whose epochs are `rows` rows long; one epoch when neither is given. `behind`: as in StepTable."""
    if steps is not None:
        return steps, steps * batch - behind
    samples = max(1, round(rows * (1.0 if epochs is None else epochs)))
    return math.ceil((samples + behind) / batch), samples


def split_rows(rows: int, held_out: float, seed: int) -> tuple[Rows, Rows]:
    """Return (training rows, held-out rows), both in file order; the held-out share is drawn by seed and never takes every row."""
    count = min(round(rows * held_out), rows - 1) if rows else 0
    if held_out > 0 and count == 0 and rows > 1:
        count = 1
    kept = np.ones(rows, dtype=bool)
    kept[permutation(rows, seed, Stream.HELD_OUT)[:count]] = False
    return np.flatnonzero(kept), np.flatnonzero(~kept)


def split_groups(group: Rows, held_out: float, seed: int) -> tuple[Rows, Rows]:
    """Split rows that hang together likewise, each group whole on one side. group: of each row the first one of its group, [rows].

    A group that is too large for the share is trained on, but for the smallest one where all are; a single group is divided as rows are.
    """
    rows = len(group)
    wanted = len(split_rows(rows, held_out, seed)[1])
    drawn = group[permutation(rows, seed, Stream.HELD_OUT)]
    heads = drawn[np.sort(np.unique(drawn, return_index=True)[1])]
    sizes = np.bincount(group, minlength=rows)
    if not wanted or len(heads) == 1:
        return split_rows(rows, held_out, seed)
    chosen, left = [], wanted
    for head in heads.tolist():
        if left <= 0:
            break
        size = int(sizes[head])
        if size <= 2 * left and wanted - left + size < rows:
            chosen.append(head)
            left -= size
    chosen = chosen or [int(heads[sizes[heads].argmin()])]
    judging = np.isin(group, chosen)
    return np.flatnonzero(~judging), np.flatnonzero(judging)


def draw_rows(rows: Rows, limit: int | None, seed: int) -> list[int]:
    """Draw at most `limit` of `rows` by seed, in their order; all of them when it is None."""
    chosen = sorted(permutation(len(rows), seed, Stream.EVALUATION)[:limit].tolist())
    return [int(rows[at]) for at in chosen]


def learning_rate(step: int, steps: int, peak: float, schedule: str, warmup: float) -> float:
    """Return the learning rate of step `step` of `steps` (1-based); `warmup` below 1 is a share of all steps, else steps."""
    warm = round(warmup * steps) if warmup < 1 else round(warmup)
    warm = min(warm, steps)
    if step <= warm:
        return peak * step / warm
    if schedule == "constant":
        return peak
    progress = (step - warm - 1) / max(1, steps - warm)
    return peak * (1 - progress) if schedule == "linear" else peak * 0.5 * (1 + math.cos(math.pi * progress))
