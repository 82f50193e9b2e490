"""What the lengths of rows come to: their spread, their histogram, and what training would make of them. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.core.files import Json

_BATCH = 8  # rows that are padded together where rows are not packed
_BINS = 40
Lengths = npt.NDArray[np.int32]  # tokens, [rows]


def spread(lengths: Lengths) -> dict[str, Any]:
    """Total, least, percentiles and greatest; None where there are no rows."""
    names = ("min", "p50", "p90", "p99", "max")
    if not len(lengths):
        return {"total": 0} | dict.fromkeys(names)
    values = np.percentile(lengths, [0, 50, 90, 99, 100])
    return {"total": int(lengths.sum())} | dict(zip(names, map(int, values), strict=True))


def histogram(lengths: Lengths) -> Json:
    """Rows between edges, in tokens."""
    if not len(lengths):
        return {"counts": [], "edges": []}
    counts, edges = np.histogram(lengths, bins=min(_BINS, int(lengths.max()) + 1))
    return {"counts": counts.tolist(), "edges": [round(float(edge), 2) for edge in edges]}


def outlook(lengths: Lengths, whole: Lengths) -> Json:
    """`lengths`: rows as they are trained on; `whole`: before anything is cut.

    `tokens`: of the whole rows. `padding`: share of a batch of 8 rows, as they stand in the file, that is padding unless rows are
    packed. `limits`: for each power of two as max_tokens, how many rows and tokens are beyond it.
    """
    total = int(lengths.sum())
    starts = np.arange(0, len(lengths), _BATCH)
    rows = np.diff(np.append(starts, len(lengths)))
    padded = int((np.maximum.reduceat(lengths, starts) * rows).sum()) if len(lengths) else 0
    longest = int(whole.max(initial=0))
    powers = [1 << bits for bits in range(5, 21) if (1 << bits) < longest] if longest else []
    limits = [
        {"max_tokens": limit, "rows": int((whole > limit).sum()), "tokens": int(np.maximum(whole.astype(np.int64) - limit, 0).sum())}
        for limit in powers
    ]
    return {"tokens": int(whole.sum()), "padding": round(1 - total / padded, 4) if padded else 0.0, "limits": limits}
