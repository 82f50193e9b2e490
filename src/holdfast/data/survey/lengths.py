"""What the lengths of rows come to: their spread, their histogram, and what training would make of them. Pure.

Held is how many rows have each length, so the memory does not grow with the rows.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.base.files import Json

_BATCH = 8  # rows that are padded together where rows are not packed
_BINS = 40
_TAIL = 8  # times the length that nine rows of ten do not exceed: beyond it equal bins would hold the body in a few
_DENSE = 1 << 16  # tokens up to which each length has its place in an array
_PERCENTILES = {"min": 0.0, "p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
Counts = npt.NDArray[np.int64]


class Tally:
    """How many rows have each length."""

    def __init__(self) -> None:
        self._dense = np.zeros(_DENSE, np.int64)
        self._long: Counter[int] = Counter()

    def add(self, lengths: npt.NDArray[np.int32]) -> None:
        short = lengths < _DENSE
        found = np.bincount(lengths[short])
        self._dense[: len(found)] += found
        self._long.update(lengths[~short].tolist())

    def counted(self) -> tuple[Counts, Counts]:
        """Return the distinct lengths, ascending, and how many rows have each."""
        short = np.flatnonzero(self._dense)
        long = np.array(sorted(self._long), np.int64)
        counts = np.array([self._long[length] for length in long.tolist()], np.int64)
        return np.concatenate([short, long]), np.concatenate([self._dense[short], counts])


class Lengths:
    """Of all rows so far: as they are trained on, and whole, before anything is cut."""

    def __init__(self) -> None:
        self._trained, self._whole = Tally(), Tally()
        self._padded = 0  # tokens of whole batches, each as long as its longest row
        self._rest = np.zeros(0, np.int32)  # the batch that is not whole yet

    def add(self, trained: npt.NDArray[np.int32], whole: npt.NDArray[np.int32]) -> None:
        """Take rows as they stand in the file."""
        self._trained.add(trained)
        self._whole.add(whole)
        rows = np.concatenate([self._rest, trained])
        full = len(rows) // _BATCH * _BATCH
        self._padded += _BATCH * int(rows[:full].reshape(-1, _BATCH).max(axis=1).sum()) if full else 0
        self._rest = rows[full:].copy()

    def spread(self) -> dict[str, Any]:
        """Return total, least, percentiles and greatest, as numpy has them; None where there are no rows."""
        values, counts = self._trained.counted()
        if not len(values):
            return {"total": 0} | dict.fromkeys(_PERCENTILES)
        behind = np.cumsum(counts)

        def between(share: float) -> int:
            place = share * (int(behind[-1]) - 1)
            low, high = (int(values[np.searchsorted(behind, at, "right")]) for at in (int(place), min(int(place) + 1, int(behind[-1]) - 1)))
            part = place - int(place)
            return int(low + (high - low) * part if part < 0.5 else high - (high - low) * (1 - part))

        return {"total": int((values * counts).sum())} | {name: between(share) for name, share in _PERCENTILES.items()}

    def histogram(self) -> Json:
        """Count whole rows between edges, in tokens; edges grow by a factor where a few rows are far longer than the others."""
        values, counts = self._whole.counted()
        if not len(values):
            return {"counts": [], "edges": []}
        usual = int(values[np.searchsorted(np.cumsum(counts), 0.9 * counts.sum())])
        tail = values[-1] > _TAIL * usual and values[0] > 0
        bins = np.geomspace(values[0], values[-1], _BINS + 1).round(2) if tail else min(_BINS, int(values[-1]) + 1)
        found, edges = np.histogram(values, bins=bins, weights=counts)
        return {"counts": found.astype(np.int64).tolist(), "edges": [round(float(edge), 2) for edge in edges]}

    def outlook(self) -> Json:
        """Return `tokens`: of whole rows. `padding`: share of a batch of 8 rows, as they stand in the file, that is padding unless rows are
        packed. `limits`: for each power of two as max_tokens, up to the first that holds all, how many rows and tokens are beyond it."""
        trained, rows = self._trained.counted()
        total = int((trained * rows).sum())
        padded = self._padded + len(self._rest) * int(self._rest.max(initial=0))
        values, counts = self._whole.counted()
        longest = int(values[-1]) if len(values) else 0
        powers = [1 << bits for bits in range(5, 21) if (1 << bits) < 2 * longest]
        limits = [
            {
                "max_tokens": limit,
                "rows": int(counts[values > limit].sum()),
                "tokens": int((np.maximum(values - limit, 0) * counts).sum()),
            }
            for limit in powers
        ]
        padding = round(1 - total / padded, 4) if padded else 0.0
        return {"tokens": int((values * counts).sum()), "padding": padding, "limits": limits}
