"""Say what speaks against a course of losses that looks well: held-out losses that rise, a resume that is no resume, a loss that stands.

Pure. None names a cause: what is seen is told, with its numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from holdfast.base.units import counted
from holdfast.diagnosis.logs.curve import NUMBER, SURE_DIGITS, Point, column_below, loss_stands, points
from holdfast.diagnosis.logs.text import Line
from holdfast.run.types import Clue, Diagnosis

_NAME = r"(?:eval|val|valid|validation|test|dev|held[ _-]?out)(?:uation)?(?:[ _/]\w+?)?[ _/]loss"
_HELD_OUT = re.compile(rf"(?<![\w.])({_NAME})(?:\s+at\s+[^|]*\|\s*lm loss value)?['\"]?\s*[:=|]?\s*{NUMBER}", re.I)
_HEAD = re.compile(_NAME, re.I)
_RESUMED = re.compile(
    r"\b(?:resum(?:ed|ing)|restor(?:ed|ing)|continuing)\b.{0,40}\b(?:from|checkpoint|step|epoch|run)\b"
    r"|\bload(?:ed|ing)\b.{0,30}\bcheckpoint|\bloading \w+ from \S*(?:checkpoint|step|epoch)",
    re.I,
)
_ONCE, _TWICE = 1.10, 1.03  # the newest held-out loss against the lowest, where one evaluation is worse, and where more of them are
_JUMP, _JUMP_BY = 2.5, 0.3  # the loss on either side of a resume: factor and difference
_CLUES, _LONGEST = 5, 500
_BEFORE, _AFTER = 5, 3  # losses on either side whose median is compared


@dataclass(frozen=True)
class Doubt:
    """line: where it is seen, None where no log says it; seen: the fact with its numbers; advice: what to do."""

    line: Line | None
    seen: str
    advice: str


def doubts(lines: Sequence[Line]) -> list[Doubt]:
    """List what speaks against calling the run of a log healthy."""
    course = points(lines)
    found = (
        *(_of_held_out(values, course) for values in _held_out(lines).values()),
        _at_a_resume(lines, course),
        _of_few_digits(lines, course),
    )
    return [doubt for doubt in found if doubt is not None]


def doubted(against: Sequence[Doubt]) -> Diagnosis:
    """Diagnose a run that nothing ended, and that is not well: tell its course, and no cause."""
    clues: list[Clue] = []
    for doubt in against:
        clues.append(Clue(None, doubt.seen))
        if doubt.line and doubt.line.number:
            clues.append(Clue(doubt.line.number, doubt.line.text.strip()[-_LONGEST:]))
    told = " ".join(f"{doubt.seen[0].upper()}{doubt.seen[1:]}. {doubt.advice}" for doubt in against)
    return Diagnosis("unknown", 0.0, tuple(clues)[:_CLUES], explanation=f"Nothing failed. {told}")


def lowest(held_out: Sequence[float]) -> int | None:
    """Return the position of the lowest held-out loss, where later ones are worse beyond the noise of evaluations; else None."""
    held_out = [value if math.isfinite(value) else math.inf for value in held_out]
    if not held_out or min(held_out) == math.inf:
        return None
    at = min(range(len(held_out)), key=held_out.__getitem__)
    later = held_out[at + 1 :]
    limit = held_out[at] * (_ONCE if len(later) == 1 else _TWICE)
    return at if later and held_out[-1] > limit and min(later) > held_out[at] else None


def told(held_out: Sequence[float], at: int, before: Sequence[float], after: Sequence[float], name: str, where: str) -> Doubt:
    """Return the doubt that follows from held-out losses, lowest at position `at`.

    before, after: training losses up to the lowest and since, where they are known; where: what saves that state.
    """
    shown = held_out if len(held_out) <= 6 else (*held_out[:2], held_out[at], *held_out[-2:])
    course = " -> ".join(f"{value:.4g}" for value in dict.fromkeys(shown))
    seen = f"{name} rises after evaluation {at + 1} of {len(held_out)}, where it is lowest: {course}"
    advice = f"Keep the state of evaluation {at + 1}, the best one ({where})."
    if before and after and median(after) < median(before):
        seen += f", while the training loss falls, {median(before):.4g} -> {median(after):.4g}: the rows are being learned by heart"
        advice += " Fewer epochs, a lower learning rate, a smaller adapter or more rows keep it from being passed."
    return Doubt(None, seen, advice)


def _held_out(lines: Sequence[Line]) -> dict[str, list[tuple[Line, float]]]:
    """Return held-out losses by their name; a value printed twice in a row counts once."""
    found: dict[str, list[tuple[Line, float]]] = {}
    for line, name, value in column_below(lines, _HEAD):
        found.setdefault(name, []).append((line, value))
    for line in lines:
        if "loss" in line.text.lower() and "->" not in line.text:
            for match in _HELD_OUT.finditer(line.text):
                found.setdefault(match[1], []).append((line, float(match[2])))
    return {name: [values[0], *(new for old, new in pairwise(values) if new[1] != old[1])] for name, values in found.items()}


def _of_held_out(values: list[tuple[Line, float]], course: Sequence[Point]) -> Doubt | None:
    losses = [value for _, value in values]
    if bad := [line for line, value in values if not math.isfinite(value)]:
        seen = f"the held-out loss is not finite in {len(bad)} of {len(values)} evaluations"
        return Doubt(bad[0], seen, "Look at the rows held out, and at whether they have anything to learn: a mean of nothing is nan.")
    at = lowest(losses)
    if at is None:
        return None
    number = values[at][0].number or 0
    before = [point.loss for point in course if (point.line.number or 0) <= number and math.isfinite(point.loss)]
    after = [point.loss for point in course if (point.line.number or 0) > number and math.isfinite(point.loss)]
    keeps = "in transformers: load_best_model_at_end with save_strategy as eval_strategy; in holdfast: evaluate.every"
    found = told(losses, at, before, after, "the held-out loss", keeps)
    return Doubt(values[at][0], found.seen, found.advice)


def _of_few_digits(lines: Sequence[Line], course: Sequence[Point]) -> Doubt | None:
    """Return the doubt about losses that stay equal in too few digits to say that no weight is updated."""
    digits = loss_stands(course, lines)
    if not 0 < digits < SURE_DIGITS:
        return None
    seen = f"the loss stays the same, or comes again the same in each epoch, and is printed in {counted(digits, 'digit')}: too few"
    seen += " to tell whether a weight is updated"
    return Doubt(
        course[-1].line, seen, "Print more digits, the gradient norm, or the norm of a trained weight before and after some steps."
    )


def _at_a_resume(lines: Sequence[Line], course: Sequence[Point]) -> Doubt | None:
    """Return the doubt about the first resume after which the loss does not go on from where it was."""
    said = [line.number or 0 for line in lines if _RESUMED.search(line.text)]
    for at in range(1, len(course)):
        one, other = course[at - 1], course[at]
        between = any((one.line.number or 0) < number <= (other.line.number or 0) for number in said)
        back = one.epoch is not None and other.epoch is not None and other.epoch < one.epoch and one.line.rank == other.line.rank
        if not (between or back):
            continue
        before = [point.loss for point in course[max(0, at - _BEFORE) : at] if math.isfinite(point.loss)]
        after = [point.loss for point in course[at : at + _AFTER] if math.isfinite(point.loss)]
        if len(before) >= 2 and after and (doubt := _jump(median(before), median(after), other.line)):
            return doubt
    return None


def _jump(before: float, after: float, line: Line) -> Doubt | None:
    low, high = sorted((before, after))
    if low <= 0 or high < _JUMP * low or high - low < _JUMP_BY:
        return None
    seen = f"the loss does not go on where it was at a resume: {before:.4g} before, {after:.4g} after, a factor of {high / low:.1f}"
    rose = "whether the weights and the optimizer's state were loaded (names of missing keys, the rate at the resume)"
    fell = "whether the loss is divided by the same number of tokens and micro-batches, and whether rows already learned are seen again"
    return Doubt(line, seen, f"A resume that restores everything goes on at the same level. Look {rose if after > before else fell}.")
