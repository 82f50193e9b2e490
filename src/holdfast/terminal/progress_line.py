"""The live line of a run, at any width of the terminal: what does not fit whole is left out, the least telling first. Pure text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live
from rich.text import Text

_BAR = (10, 40)  # columns, fewest and most
_GAP = "  "


@dataclass(frozen=True)
class ProgressWords:
    """What there is to say of a run at a step, in words that are never cut; empty where nothing is known.

    others: tokens a second and what else is shown where there is room, the most telling first.
    """

    step: int
    steps: int
    loss: str = ""
    left: str = ""
    others: tuple[str, ...] = ()


def progress_line(shown: ProgressWords, width: int) -> str:
    """Return a line of at most `width` columns: step, loss and time left before a bar, and this before the rest."""
    room = width - 1  # some terminals wrap what fills their last column
    step = f"step {shown.step:,}/{shown.steps:,}"
    room -= len(step)
    fits: set[int] = set()
    parts = ("", shown.loss, shown.left, *shown.others)  # the first is the bar
    for place in (1, 2, 0, *range(3, len(parts))):
        needed = len(_GAP) + (len(parts[place]) if place else _BAR[0])
        if (parts[place] or not place) and needed <= room:
            fits.add(place)
            room -= needed
    bar = ""
    if 0 in fits:
        long = min(_BAR[1], _BAR[0] + room)
        done = round(long * min(1.0, shown.step / shown.steps)) if shown.steps else long
        bar = "━" * done + "─" * (long - done)
    kept = [bar if place == 0 else parts[place] for place in (0, 1, *range(3, len(parts)), 2) if place in fits]
    return _GAP.join([step, *kept])


def live_line(look: Callable[[], ProgressWords], console: Console) -> Live:
    """Display this line, as wide as the terminal is at each refresh; `look` is asked for what to say."""

    def line() -> Text:
        return Text(progress_line(look(), console.width), no_wrap=True, overflow="crop")

    # no thread of its own: it would write to a terminal that is gone
    return Live(console=console, transient=True, auto_refresh=False, get_renderable=line)
