"""Say what is odd about a run's course, or that nothing is. Pure: rows and cards are given; it stops nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from holdfast.base.files import Json
from holdfast.book.kinds.sign import Sign, column
from holdfast.diagnosis.divergence import above_start

_NEWEST, _HARDLY, _TIMES = 5, 0.99, 100  # losses; of the first one; times the first norm
FIRST_WORD_AT = 10  # steps after which a run is called healthy, or not


def odd(steps: Sequence[Json], signs: Iterable[Sign]) -> dict[str, str]:
    """Return what the signs say about the newest rows, by sign."""
    found = {sign.id: sign.look(steps[-sign.newest :]) for sign in signs}
    return {name: words for name, words in found.items() if words is not None}


def at_the_end(steps: Sequence[Json], told: Iterable[Json], signs: Iterable[Sign]) -> list[Json]:
    """Return [{sign, step, says, cause, lasts}] of events told of a run and signs in its last steps. lasts: it still holds at the end.

    told: the events of signs. For summary, report, terminal and `diagnose` alike.
    """
    cards = {sign.id: sign for sign in signs}
    now = odd(steps, cards.values()) if len(steps) >= FIRST_WORD_AT else {}
    found = {one["sign"]: (one["step"], one["says"]) for one in told if one["sign"] != "first"}
    found |= {name: (found[name][0] if name in found else steps[-1]["step"], says) for name, says in now.items()}
    causes = {name: cards[name].cause if name in cards else None for name in found}
    return [{"sign": name, "step": step, "says": says, "cause": causes[name], "lasts": name in now} for name, (step, says) in found.items()]


def ills(summary: Json) -> list[Json]:
    """Return the entries of a summary's `health` that hold at the run's end, though nothing ended it: its result may be worth nothing."""
    return [one for one in summary.get("health") or () if one["cause"] and one["lasts"]]


def swelling(losses: Sequence[float], norms: Sequence[float]) -> str:
    """Say that the gradients have grown many times over and the loss has hardly fallen, as with too high a rate; else empty."""
    if not losses or not norms or median(losses[-_NEWEST:]) <= _HARDLY * losses[0] or not max(norms) > _TIMES * norms[0] > 0:
        return ""
    return f"the gradient norm has grown {max(norms) / norms[0]:,.0f}-fold and the loss has hardly fallen, as with too high a rate,"


def first_word(steps: Sequence[Json], oddities: dict[str, str]) -> str:
    """Judge the first steps in one sentence."""
    if oddities:
        return f"after {len(steps)} steps: {'; '.join(oddities.values())}"
    losses, norms = column(steps, "loss"), column(steps, "grad_norm")
    level = median(losses[-_NEWEST:])  # by which it is judged; one step's says little
    calm = "healthy" if level <= losses[0] else "nothing is odd, but the loss has not fallen yet,"
    standing = "the loss is higher than it began" if above_start(losses) else swelling(losses, norms) or calm
    newest = f"{level:.3f} (median of the last {_NEWEST})"
    course = f"loss {losses[0]:.3f} -> {newest}, gradient norm {min(norms):.2f} to {max(norms):.2f}"
    return f"{standing} after {len(steps)} steps: {course}"
