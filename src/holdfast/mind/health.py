"""Say what is odd about a run's course, or that nothing is. Pure: rows and cards are given; it stops nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.core.files import Json
from holdfast.core.sign import Sign, column
from holdfast.mind.course import above_start

FIRST_WORD_AT = 10  # steps after which a run is called healthy, or not


def odd(steps: Sequence[Json], signs: Iterable[Sign]) -> dict[str, str]:
    """What the signs say about the newest rows, by sign."""
    found = {sign.id: sign.look(steps[-sign.newest :]) for sign in signs}
    return {name: words for name, words in found.items() if words is not None}


def first_word(steps: Sequence[Json], oddities: dict[str, str]) -> str:
    """One sentence after the first steps."""
    if oddities:
        return f"after {len(steps)} steps: {'; '.join(oddities.values())}"
    losses, norms = column(steps, "loss"), column(steps, "grad_norm")
    standing = "the loss is higher than it began" if above_start(losses) else "healthy"
    course = f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, gradient norm {min(norms):.2f} to {max(norms):.2f}"
    return f"{standing} after {len(steps)} steps: {course}"
