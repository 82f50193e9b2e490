"""Item `first`: the first ten steps as the run would take them, judged by the signs of the book and by what guessing would give."""

from __future__ import annotations

import math

from holdfast.base.files import Json
from holdfast.book import cards_of
from holdfast.diagnosis.divergence import above_start
from holdfast.diagnosis.health_signs import first_word, odd, swelling
from holdfast.experiments.check.bench import Bench, Item, losses, not_done
from holdfast.experiments.laboratory import finished
from holdfast.experiments.replay import failure

_STEPS, _LEAST, _MOST_S = 10, 3, 60.0
_WORSE_THAN_GUESSING = 1.15  # times the loss of a guess among all tokens: a random model is near 1


def first(bench: Bench) -> Item:
    """Train ten steps, or as many of them as a minute holds."""
    steps = min(_STEPS, int(bench.facts["steps"]))
    outcome = bench.course(steps=steps, most_seconds=_MOST_S, least_steps=_LEAST)
    if not finished(outcome):
        return not_done("first", outcome, bench.command("doctor"))
    rows, found = outcome["rows"], losses(outcome)
    guess = guessing(bench.facts)
    norms = [row["grad_norm"] for row in rows if row["grad_norm"] is not None]
    numbers: Json = {
        "steps": len(rows),
        "loss": {"first": found[0] if found else None, "last": found[-1] if found else None},
        "grad_norm": {"least": min(norms, default=None), "most": max(norms, default=None)},
        "guessing": None if guess is None else round(guess, 4),
    }
    why, following = _wrong(bench, rows, found, norms, guess)
    if why:
        return Item("first", "failed", numbers, why, following)
    oddities = odd(rows, cards_of("signs").values())
    if oddities or above_start(found):
        return Item("first", "unknown", numbers, first_word(rows, oddities), bench.command("check", "--only overfit"))
    return Item("first", "passed", numbers, first_word(rows, {}))


def guessing(facts: Json) -> float | None:
    """Return the loss of a uniform guess over the vocabulary; None where there is none."""
    vocabulary = (facts.get("rows") or {}).get("vocabulary")
    return math.log(vocabulary) if vocabulary else None


def _wrong(bench: Bench, rows: list[Json], found: list[float], norms: list[float], guess: float | None) -> tuple[str, str]:
    """Return (what is wrong, what follows); empty where nothing is."""
    last = rows[-1]
    precision = bench.command("check", "--only", "precision")
    if not last["finite"]:
        return f"step {last['step']}: {failure({'ending': 'finished'} | last)}, in {bench.dtype}", precision
    if not any(found):
        return (
            "the loss is 0 in every step: no token is learned (masks), or the loss is lost on its way",
            "holdfast data show FILE --row N shows what is learned",
        )
    if not any(norms):
        return "the gradient is 0 in every step: nothing that is trained has an effect on the loss", bench.command(
            "check", "--only overfit"
        )
    if guess is not None and found[0] > _WORSE_THAN_GUESSING * guess:
        told = f"the loss begins at {found[0]:.3f}, worse than a guess among all tokens ({guess:.3f})"
        return f"wrong tokens, or weights that are not the model's: {told}", "compare the tokenizer's files with the model's own"
    if told := swelling(found, norms):
        return told.rstrip(","), bench.command("check", "--only overfit")
    return "", ""
