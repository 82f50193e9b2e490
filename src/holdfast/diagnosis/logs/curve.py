"""Read the course of loss and gradient norm out of a log of any trainer, and say in a sentence what is odd about it. Pure."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from holdfast.diagnosis.logs.text import Line

NUMBER = r"['\"]?(?:tensor\()?([-+]?(?:nan|inf(?:inity)?|\d+\.?\d*(?:e[-+]?\d+)?))\b"
_LOSS = re.compile(
    r"(?<![\w/])(?:(?:train|training|lm|avg|avr|average|mean|total|sft|lm_|batch|global|step|epoch|running|smooth|ema|tr|ce|cur|current)"
    r"(?:ing)?[ _/]*)?loss['\"]?(?:\(\w+\))?\s*[:=|]?\s*\[?" + NUMBER,
    re.I,
)
_NORM = re.compile(r"(?<![\w/])(?:train/)?(?:grad(?:ient)?[ _]?norm|gnorm|norm)['\"]?\s*[:=|]?\s*" + NUMBER, re.I)
_RATE = re.compile(r"(?<![\w/])(?:learning[ _]rate|lr)['\"]?\s*[:=|]?\s*" + NUMBER, re.I)
_ACCURACY = re.compile(r"token_accuracy['\"]?\s*[:=|]?\s*" + NUMBER, re.I)
_EPOCH = re.compile(r"\bepoch['\"]?\s*[:=|]\s*([\d.]+)", re.I)
_COLUMN = re.compile(r"(?<!\s)\s*\|\s*|\t+| {2,}|,(?=\S)")
_HEAD = re.compile(r"(?:train(?:ing)?[ _/])?loss", re.I)
_NOT_TRAINING = re.compile(r"\b(?:eval(?:uation)?(?: results?)?|val|valid|validation|test|dev|held[ _-]?out)[ _/:]", re.I)
_EPOCH_BEGINS = re.compile(r"\bepochs?\b['\"]?\s*[:=#]?\s*[\[(]?\s*\d", re.I)
_STEP = re.compile(r"\b(?:step|iter(?:ation)?)s?\b['\"]?\s*[:=#]?\s*\d", re.I)
_NUMBERS = re.compile(r"[\d.,:%|/=\[\](){}'\"]+")
_NONE_LEFT = re.compile(r"\btrain_steps_per_second['\"]?: ?['\"]?0(?:\.0)?\b(?!\.)")  # a Trainer's summary of a start behind the last step
_COURSE = 3  # losses of one wording
_BEFORE = 24  # characters before a loss that may say of what it is
HUGE = 1000.0  # no cross entropy is that large
HIGH, LATE = 5.0, 0.2  # a fine-tuned language model is far below this loss by then
CLIMBED, CLIMBED_BY = 1.4, 0.5  # the last level against the best one: factor and difference
RISEN, DIP = 1.25, 0.97  # the last value against the first, where each is at least this share of the one before it
LARGE_RATE = 1.0
SURE_DIGITS = 5  # significant digits of a loss that stays equal; with fewer a small update is rounded away
NEAR_NOUGHT = 0.05  # a loss below this may be printed as 0 by rounding
FALLEN = 0.9  # the last level against the first, where the loss falls
_POLICY = re.compile(r"\breward['\"]?\s*[:=|]")  # beside a policy's loss, whose course says nothing of what is learned
JUMPED = 2.0  # all later values against the first, where there are only three


@dataclass(frozen=True)
class Point:
    line: Line
    loss: float
    norm: float | None
    rate: float | None
    accuracy: float | None
    epoch: float | None
    digits: int  # significant ones, as printed


def points(lines: Sequence[Line]) -> list[Point]:
    """Return the logged training losses, in order; without what a summary says once, of the whole run or of its end."""
    found = [Point(line, value, None, None, None, None, _digits(f"{value:.15g}")) for line, _, value in column_below(lines, _HEAD)]
    names = ["column"] * len(found)
    for line in lines:
        if "oss" not in line.text and "OSS" not in line.text:
            continue
        match = _LOSS.search(line.text)
        if match is None and not math.isfinite(_value(_NORM, line.text) or 0.0):
            found.append(Point(line, math.nan, math.nan, None, None, None, 0))  # Megatron leaves a loss out that is not finite
            names.append("column")
        if match is None or _NOT_TRAINING.search(line.text[max(0, match.start() - _BEFORE) : match.start() + 5]):
            continue
        if _NONE_LEFT.search(line.text):
            continue
        norm, rate, accuracy, epoch = (_value(pattern, line.text) for pattern in (_NORM, _RATE, _ACCURACY, _EPOCH))
        found.append(Point(line, float(match[1]), norm, rate, accuracy, epoch, _digits(match[1])))
        names.append(line.text[: match.start(1)].lower().rpartition("loss")[0][-_BEFORE:])
    return _without_summaries(found, names)


def _without_summaries(found: list[Point], names: list[str]) -> list[Point]:
    """Leave out a loss whose wording comes once, where another one is a course: the mean at the end, what a run began with."""
    words = [_NUMBERS.sub("", name).split() for name in names]
    last = [(name[-1] if name else "") for name in words]
    count = Counter(last)
    if max(count.values(), default=0) < _COURSE:
        return found
    return [point for point, name in zip(found, last, strict=True) if count[name] > 1 or not math.isfinite(point.loss)]


def column_below(lines: Sequence[Line], head: re.Pattern[str]) -> list[tuple[Line, str, float]]:
    """Return (line, head, value) of a table as in notebooks and CSV files: numbers in the first column whose head matches `head`."""
    found: list[tuple[Line, str, float]] = []
    column, name = -1, ""
    for line in lines:
        cells = _COLUMN.split(line.text.strip(" |"))
        heads = [at for at, cell in enumerate(cells) if head.fullmatch(cell)] if len(cells) > 1 else []
        if heads:
            column, name = heads[0], cells[heads[0]]
        elif 0 <= column < len(cells) and (value := re.fullmatch(NUMBER, cells[column], re.I)):
            found.append((line, name, float(value[1])))
    return found


def _digits(printed: str) -> int:
    return len(printed.lower().partition("e")[0].lstrip("+-0.").replace(".", ""))


def _value(pattern: re.Pattern[str], text: str) -> float | None:
    match = pattern.search(text)
    try:
        return float(match[1]) if match else None
    except ValueError:
        return None


def curve_readings(lines: Sequence[Line]) -> Iterator[Line]:
    """Yield a sentence on the course of the loss, and one on what does not move, where there is a curve at all."""
    course = points(lines)
    if not course:
        return
    bad = next((point for point in course if not math.isfinite(point.loss)), None)
    lost = next((at for at, point in enumerate(course) if not _alive(point) and not _rounded_away(course[:at], point)), None)
    ill = next((point for point in course if point.norm is not None and not math.isfinite(point.norm)), None)
    alive = [point for point in course if _alive(point)]
    if not alive:
        yield _dead_from_the_start(course)
    elif lost is not None and lost > 0 and not any(_alive(point) for point in course[lost:][-3:]):
        what = "becomes nan" if bad else "falls to 0"
        before = " after a gradient norm that is not finite" if ill and ill.line != course[lost].line else ""
        yield Line(course[lost].line.number, f"reading: loss {what} after healthy steps{before}", course[lost].line.rank)
    elif bad:
        yield Line(bad.line.number, "reading: loss is nan at single steps", bad.line.rank)
    elif ill and not _heals(course):
        yield Line(ill.line.number, "reading: gradient norm is not finite while the loss is", ill.line.rank)
    else:
        yield _finite(alive)
    rates = [(point.rate, point.line) for point in course if point.rate is not None and point.rate > LARGE_RATE]
    if rates and not _falls(alive):
        rate, line = rates[-1]
        yield Line(line.number, f"reading: learning rate is {rate:g}, far above what language models learn at", line.rank)
    if len(course) >= 3 and (_idle(course) or loss_stands(course, lines) >= SURE_DIGITS):
        yield Line(course[-1].line.number, "reading: nothing moves: loss, gradient norm or learning rate say that no weight is updated")


def _dead_from_the_start(course: list[Point]) -> Line:
    first = course[0]
    what = "0" if first.loss == 0 else "nan"
    masked = first.accuracy == 0
    late = (first.epoch or 0) > LATE and not masked and any(point.norm != 0 for point in course)
    where = "in all that is shown, from the middle of the run on" if late else "from the first logged step on"
    return Line(first.line.number, f"reading: loss is {what} {where}" + (", token accuracy 0" if masked else ""), first.line.rank)


def _alive(point: Point) -> bool:
    """Return whether the loss is finite and not 0, which that of a policy gradient may be while the gradient is not."""
    policy = bool(point.norm) and "reward" in point.line.text
    return math.isfinite(point.loss) and (point.loss != 0 or policy)


def _rounded_away(before: Sequence[Point], point: Point) -> bool:
    """Return whether a loss of 0 is a small one that was rounded: it has a gradient, and losses before it were near 0 already."""
    small = [one.loss for one in before[-3:] if math.isfinite(one.loss)]
    return point.loss == 0 and (point.norm is None or 0 < point.norm < math.inf) and bool(small) and max(small) < NEAR_NOUGHT


def _falls(course: Sequence[Point]) -> bool:
    """Return whether the loss ends clearly below where it began."""
    losses = [point.loss for point in course]
    width = max(1, len(losses) // 5)
    return len(losses) >= 5 and median(losses[-width:]) < FALLEN * median(losses[:width])


def _heals(course: list[Point]) -> bool:
    """Return whether a gradient norm was bad only once or at the very start, as with a loss scaler, and is fine since."""
    ill = [not math.isfinite(point.norm) for point in course if point.norm is not None]
    at_start_only = sum(ill) * 2 <= len(ill) and not any(ill[sum(ill) :])
    return (sum(ill) * 4 <= len(ill) or at_start_only) and not ill[-1]


def _idle(course: Sequence[Point]) -> bool:
    """Return whether gradient norm or learning rate are 0 wherever they are printed."""
    rates = [point.rate for point in course if point.rate is not None]
    norms = [point.norm for point in course if point.norm is not None]
    return (len(norms) >= 3 and not any(norms)) or (len(rates) >= 5 and not any(rates))


def loss_stands(course: Sequence[Point], lines: Sequence[Line]) -> int:
    """Return the most significant digits in which losses stay equal, all of them or from epoch to epoch; 0 where they differ."""
    of_epochs = any(_EPOCH_BEGINS.search(line.text) for line in lines)
    same = len(course) >= 5 and len({point.loss for point in course}) == 1 and math.isfinite(course[0].loss)
    return max(point.digits for point in course) if same or _repeats(course, of_epochs) else 0


def _repeats(course: Sequence[Point], of_epochs: bool) -> bool:
    """Return whether each epoch has the same losses, to the last digit. of_epochs: the log announces epochs, and may count steps anew.

    Steps of the same number without an epoch are two runs, or one log twice.
    """
    losses = [point.loss for point in course]
    for period in range(3, len(losses) - 3):
        again = zip(course, course[period:], strict=False)
        if losses[period:] == losses[:-period] and len(set(losses[:period])) >= 3:
            return not any(_is_same_step(one, other, of_epochs) for one, other in again)
    return False


def _is_same_step(one: Point, other: Point, of_epochs: bool) -> bool:
    if one.epoch is not None and one.epoch == other.epoch:
        return True
    return not of_epochs and one.line.text == other.line.text and _STEP.search(one.line.text) is not None


def _finite(course: list[Point]) -> Line:
    losses = [point.loss for point in course]
    width = max(1, len(losses) // 5)
    levels = [median(losses[at : at + width]) for at in range(0, len(losses) - width + 1, width)]
    best, last = min(levels), median(losses[-width:])
    number = course[-1].line.number
    if median(losses) > HUGE and not _falls(course):  # a sum over a batch is as large, and falls
        return Line(number, f"reading: loss is finite but absurdly large ({median(losses):.3g})")
    steadily = len(losses) == 3 and (losses == sorted(losses) or min(losses[1:]) > JUMPED * losses[0])
    if (len(losses) >= 4 or steadily) and last > best * CLIMBED and last - best > CLIMBED_BY:
        return Line(number, f"reading: loss climbs, from {best:.3g} to {last:.3g}")
    rising = all(other > DIP * one for one, other in pairwise(losses))
    policy = any(_POLICY.search(point.line.text) for point in course)
    if len(losses) >= 5 and not policy and rising and losses[0] == min(losses) and losses[-1] > RISEN * losses[0]:
        return Line(number, f"reading: loss rises through all that is shown, from {losses[0]:.3g} to {losses[-1]:.3g}")
    if min(losses) > HIGH and all(point.epoch is not None and point.epoch >= LATE for point in course):
        return Line(number, f"reading: loss is still above {HIGH:g} at epoch {course[-1].epoch}")
    return Line(number, f"reading: loss is finite and does not climb ({len(losses)} values, last {losses[-1]:.3g})")
