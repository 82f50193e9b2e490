"""Memory that grows from step to step."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from holdfast.base.files import Json
from holdfast.book.kinds.sign import Sign, column

_STEPS, _PARTS, _GROWTH = 100, 5, 1.1


def look(steps: Sequence[Json]) -> str | None:
    peaks = column(steps[-_STEPS:], "peak_bytes")
    marks = peaks[:: _STEPS // _PARTS] + peaks[-1:]
    if len(peaks) < _STEPS or any(later <= earlier for earlier, later in itertools.pairwise(marks)):
        return None
    if peaks[-1] > _GROWTH * peaks[0]:
        return f"peak memory grew from {peaks[0] / 2**30:.2f} to {peaks[-1] / 2**30:.2f} GiB over {_STEPS} steps and goes on growing"
    return None


CARD = Sign(
    title="memory grows",
    why="The largest micro-batch is tried before step 1, so a peak that keeps rising is kept from step to step. It ends in running out.",
    source=["https://docs.pytorch.org/docs/stable/notes/faq.html"],
    look=look,
    hits=[{"peak_bytes": [2**30 + at * 2**22 for at in range(100)]}],
    misses=[
        {"peak_bytes": [2**30] * 100},
        {"peak_bytes": [2**30] * 40 + [2**31] * 60},
        {"peak_bytes": [2**30 + at * 2**22 for at in range(50)]},
    ],
)
