"""Steps that get slower."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from holdfast.base.files import Json
from holdfast.book.kinds.catalog import SuggestedRemedy
from holdfast.book.kinds.sign import Sign

_WIDTH, _TIMES = 20, 2.0


def look(steps: Sequence[Json]) -> str | None:
    paces = [row["seconds"] / row["tokens"] for row in steps if row.get("tokens") and row.get("seconds")]
    if len(paces) < 3 * _WIDTH:
        return None
    before, now = median(paces[_WIDTH:-_WIDTH]), median(paces[-_WIDTH:])
    if now > _TIMES * before:
        return f"steps have become {now / before:.1f} times as slow per token: heat, another program, or memory that runs short"
    return None


CARD = Sign(
    title="steps get slower",
    why="The same work takes longer. A card that throttles, swapping, and other programs on the machine all look like this.",
    source=["https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html"],
    remedies=[
        SuggestedRemedy(
            id="what-slows-the-card",
            what="Ask the card whether heat or power holds it back (AMD: amd-smi metric)",
            command="nvidia-smi -q -d PERFORMANCE,TEMPERATURE",
            standing="confirmed",
        ),
        SuggestedRemedy(
            id="memory-and-neighbours",
            what="See who else computes here, and whether main memory is short (the column si says what is swapped in)",
            command="vmstat 5",
            standing="confirmed",
        ),
        SuggestedRemedy(
            id="slow-from-the-start",
            what="Slow from the first step on: compare with what this machine can do, and let faster settings be tried",
            command="holdfast check CONFIG --only start,speed; holdfast tune CONFIG",
            standing="confirmed",
        ),
    ],
    look=look,
    hits=[{"seconds": [1.0] * 60 + [3.0] * 20, "tokens": [100] * 80}],
    misses=[{"seconds": [1.0] * 80, "tokens": [100] * 80}, {"seconds": [1.0] * 60 + [3.0] * 20, "tokens": [100] * 60 + [300] * 20}],
)
