"""Say that a progress bar stands still. Pure; the time that it shows goes on, so two states of it, or one at 0, tell for how long."""

from __future__ import annotations

import re
from collections.abc import Sequence

from holdfast.diagnosis.logs.text import Line

_BAR = re.compile(r"(?<![\d.])(?P<done>\d+)/(?P<total>\d+) \[(?P<passed>[\d:]+)<")
LONG = 600  # seconds without a step
FIRST = 1200  # the first step may compile kernels
TIMES = 20  # of a usual step


def standing_bar(lines: Sequence[Line]) -> Line | None:
    """Return `reading: the progress bar stands at N of M for S seconds`, where the log's only unfinished bar does."""
    bars = [(line, int(bar["done"]), int(bar["total"]), _seconds(bar["passed"])) for line in lines for bar in _BAR.finditer(line.text)]
    open_bars = [bar for bar in bars if bar[1] < bar[2]]
    if not open_bars or len({total for _, _, total, _ in open_bars}) > 1 or bars[-1] != open_bars[-1]:
        return None
    line, done, total, passed = open_bars[-1]
    since = min(at for _, count, _, at in open_bars if count == done)
    stands = passed - since if done else passed
    patience = max(LONG, TIMES * since / done) if done else FIRST
    if stands < patience:
        return None
    return Line(line.number, f"reading: the progress bar stands at {done} of {total} for {stands} seconds", line.rank)


def _seconds(clock: str) -> int:
    seconds = 0
    for part in clock.split(":"):
        seconds = seconds * 60 + int(part or 0)
    return seconds
