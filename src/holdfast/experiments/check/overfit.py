"""Item `overfit`: can the run learn ten of its rows by heart? Where not, one thing at a time is changed until it can, and that is named."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from holdfast.base.files import Json
from holdfast.experiments.check.bench import Bench, Item, losses, not_done
from holdfast.experiments.check.first import guessing
from holdfast.experiments.laboratory import finished, how

_STEPS, _FEW, _LEAST_STEPS = 60, 10, 3  # of a course; below the second it says nothing, below the third it is not cut short
_MOST_S, _ALL_S = 45.0, 240.0  # of a course; after the second none is begun
_NEAR = 0.05  # nats a label above the least that the rows allow
_WHOLE, _HALF, _SLOWLY, _STIRS = 0.9, 0.4, 0.25, 0.01  # of what there is to lose: learned, on the way, slowly, nothing at all
_CONTRADICTS = 0.1  # nats a label
_WORSE_THAN_GUESSING = 1.15
_FACTORS = (10.0, 100.0, 0.1, 0.01)  # of the run's own rate
_USUAL_RATE = {True: 1e-4, False: 2e-3}  # of all weights; of an adapter


@dataclass(frozen=True)
class Try:
    """A course over the ten rows. fell: the share of what there is to lose that it lost."""

    rate: float
    outcome: Json
    first: float
    last: float
    fell: float
    steps: int
    still_falls: bool


class _OutOfTimeError(Exception):
    """Nothing more may be begun."""


def overfit(bench: Bench) -> Item:
    """Learn ten distinct rows at the run's own rate; look for what is in the way where it does not, for some minutes at most."""
    bench.until = time.monotonic() + _ALL_S
    own = bench.config.train.lr
    outcome = _own_course(bench, own)
    if not finished(outcome):
        return not_done("overfit", outcome, bench.command("check", "--only first"))
    found = _judged(bench, own, outcome)
    numbers = _numbers(bench, found)
    if found is None:
        what = f"not finite at step {outcome['rows'][-1]['step']} of the ten rows"
        return _rate_or_numbers(bench, outcome, numbers, what)
    cause = _of_rows(bench, found) or _of_gradient(bench, outcome, found)
    if cause:
        return Item("overfit", "failed", numbers | {"cause": cause[0]}, cause[1], cause[2])
    if found.fell >= _HALF:
        told = f"ten rows: loss {found.first:.3f} to {found.last:.4f} in {found.steps} steps at {own:g}, the run's own rate"
        return Item("overfit", "passed", numbers, told)
    if found.steps < _FEW:
        return _too_slow(bench, found, numbers)
    try:
        return _search(bench, found, numbers)
    except _OutOfTimeError:
        return _too_slow(bench, found, numbers)


def _own_course(bench: Bench, rate: float) -> Json:
    """Train at the run's own rate; again without the estimate of what the output layer can express, where the model beats it already."""
    outcome, rows = _course(bench, rate, {}), bench.facts["rows"]
    found = losses(outcome)
    if found and found[0] < (rows.get("expressible_loss") or 0.0):
        rows["expressible_loss"] = None
        outcome = _course(bench, rate, {})
    return outcome


def _too_slow(bench: Bench, own: Try, numbers: Json) -> Item:
    """Return an unknown item with how far the steps got in the time there was."""
    seconds = sum(row["seconds"] for row in own.outcome["rows"])
    course = f"loss {own.first:.3f} to {own.last:.3f} in {own.steps} steps ({seconds:.0f} s) at {own.rate:g}, the run's own rate"
    tried = f"; {len(numbers['tried'])} rates were tried" if "tried" in numbers else ""
    told = f"no answer within {_ALL_S:.0f} s on this machine: {course}{tried}; that says nothing of the rate"
    shorter = bench.command("check", "train.max_tokens=LESS", "--only overfit")
    return Item(
        "overfit",
        "unknown",
        numbers,
        told,
        f"shorter rows take less time a step: {shorter}; or leave it open, and watch the run's first losses",
    )


def _course(bench: Bench, rate: float, changes: Json) -> Json:
    """Train on the ten rows until they are learned, or time is up. Raises _OutOfTimeError where it is up before the first step."""
    left = bench.until - time.monotonic()
    if left <= 0:
        raise _OutOfTimeError
    goal, most = least(bench) + _NEAR, min(_MOST_S, left)
    return bench.course(rows="ten", steps=_STEPS, rate=rate, goal=goal, most_seconds=most, least_steps=_LEAST_STEPS, config=changes)


def least(bench: Bench) -> float:
    """Return the least loss to hope for on the ten rows: what their contradictions and a frozen output layer leave of it."""
    rows = bench.facts["rows"]
    return max(rows.get("least_loss") or 0.0, rows.get("expressible_loss") or 0.0)


def _judged(bench: Bench, rate: float, outcome: Json) -> Try | None:
    """Return what a course achieved; None where it is not finite."""
    found = losses(outcome)
    if not finished(outcome) or not outcome["finite"] or not found:
        return None
    end = min(found[-1], sum(found[-3:]) / len(found[-3:])) if len(found) > 3 else found[-1]
    room = max(found[0] - least(bench), 1e-9)
    middle = found[len(found) // 2]
    return Try(rate, outcome, found[0], end, (found[0] - end) / room, len(found), end < middle - 0.05 * room)


def _numbers(bench: Bench, found: Try | None) -> Json:
    rows = bench.facts["rows"]
    kept = ("ten", "ten_labels", "ten_tokens", "least_loss", "expressible_loss", "equal_rows", "looked_at")
    numbers: Json = {name.replace("ten_", "").replace("ten", "rows"): rows[name] for name in kept if name in rows}
    if found:
        numbers |= {"first": found.first, "last": found.last, "steps": found.steps, "rate": found.rate, "fell": round(found.fell, 4)}
    return numbers


def _of_rows(bench: Bench, found: Try) -> tuple[str, str, str] | None:
    """Return (cause, why, next) where the rows or their tokens are to blame; else None."""
    rows, guess = bench.facts["rows"], guessing(bench.facts)
    contradicting = rows.get("least_loss") or 0.0
    if bench.config.data.train_on == "assistant" and contradicting > _CONTRADICTS:
        told = f"contradicting rows: the same beginning has different answers, and no model gets below {contradicting:.3f} a label here"
        return "contradicting_rows", told, "holdfast data check ROWS names rows whose prompts are alike; keep one answer for each"
    if guess is not None and found.first > _WORSE_THAN_GUESSING * guess:
        told = f"wrong tokens: the loss begins at {found.first:.3f}, worse than a guess among all tokens ({guess:.3f})"
        return "wrong_tokens", told, "compare the tokenizer's files with the model's own; weights may be another model's"
    return None


def _of_gradient(bench: Bench, outcome: Json, found: Try) -> tuple[str, str, str] | None:
    """Return (cause, why, next) where nothing can move (no loss, no gradient, no update); else None."""
    norms = [row["grad_norm"] for row in outcome["rows"]]
    if found.first == 0 and not any(losses(outcome)):
        return "masks", "masks: the loss is 0 in every step, so no token counts", "holdfast data show FILE --row N shows what is learned"
    if not any(norms):
        told = f"nothing learns: the gradient of all {outcome['size']:,} trained numbers is 0 in every step, at a loss of {found.first:.3f}"
        return "no_gradient", told, "look at adapter.targets, and at the model's weights behind them (an output layer of zeros?)"
    if outcome["moved"] == 0:
        told = f"nothing learns: gradients are there (norm {norms[0]:.3g}), but the update moved no weight at rate {found.rate:g}"
        return "no_update", told, bench.command("check", f"train.lr={10 * found.rate:g}", "--only overfit")
    return None


def _search(bench: Bench, own: Try, numbers: Json) -> Item:
    """Try the rate first, then all settings that may be to blame at once, then each of them."""
    usual = _USUAL_RATE[bench.config.adapter.kind.own_weights]
    rates = dict.fromkeys([usual, *(own.rate * factor for factor in _FACTORS)])
    tried = [own]
    numbers["tried"] = {f"{own.rate:g}": round(own.last, 4)}
    for rate in rates:
        one = _judged(bench, rate, _course(bench, rate, {}))
        if one:
            tried.append(one)
            numbers["tried"][f"{rate:g}"] = round(one.last, 4)
        if one and one.fell >= _WHOLE:
            break
    best = max(tried, key=lambda one: one.fell)
    if best.fell >= _HALF:
        return _of_rate(bench, own, best, numbers)
    if any(one.steps < _STEPS for one in tried):
        return _too_slow(bench, own, numbers)
    return _of_settings(bench, own, best, numbers)


def _of_rate(bench: Bench, own: Try, best: Try, numbers: Json) -> Item:
    course = f"loss {own.first:.3f} to {own.last:.3f} at {own.rate:g} and to {best.last:.3f} at {best.rate:g}"
    if own.fell >= _STIRS and own.fell > 0.02 * best.fell and best.rate > own.rate:
        return Item("overfit", "passed", numbers, f"ten rows in {own.steps} steps: {course}; the run's own rate is slow, and learns")
    side = "low" if best.rate > own.rate else "high"
    following = bench.command("check", f"train.lr={best.rate:g}", "--only overfit")
    return Item("overfit", "failed", numbers | {"cause": f"rate_too_{side}"}, f"the rate is too {side}: {course}", following)


def _rate_or_numbers(bench: Bench, outcome: Json, numbers: Json, what: str) -> Item:
    """Explain a course that became non-finite: at once, or because its rate is too high."""
    precision = bench.command("check", "--only precision")
    if outcome["rows"][-1]["step"] == 1:
        return Item(
            "overfit", "failed", numbers | {"cause": "not_finite"}, f"{what}, before any update: the rate is not the reason", precision
        )
    own, tried = bench.config.train.lr, list[str]()
    for rate in (0.1 * own, 0.01 * own, 0.001 * own):
        try:
            course = _course(bench, rate, {})
        except _OutOfTimeError:
            tried.append(f"there was no time to try {rate:g}")
            break
        one = _judged(bench, rate, course)
        if one and one.fell >= _STIRS:
            told = f"the rate is too high: {what} at {own:g}; at {rate:g} it goes to {one.last:.3f}"
            following = bench.command("check", f"train.lr={rate:g}", "--only overfit")
            return Item("overfit", "failed", numbers | {"cause": "rate_too_high"}, told, following)
        moved = f"it is finite, and the loss hardly falls ({one.first:.3f} to {one.last:.3f})" if one else ""
        tried.append(f"at {rate:g} {moved or ('not finite, too' if finished(course) else how(course))}")
    told = f"{what} at {own:g}; {'; '.join(tried)}"
    return Item("overfit", "failed", numbers | {"cause": "not_finite"}, told, precision)


def _healthy(bench: Bench) -> Json:
    """Return the usual values of the keys that may be to blame and differ from them."""
    train, adapter = bench.config.train, bench.config.adapter
    usual: dict[str, tuple[Any, Any]] = {
        "train.epsilon": (train.epsilon, 1e-8),
        "train.weight_decay": (train.weight_decay, 0.0),
        "train.beta1": (train.beta1, 0.9),
        "train.beta2": (train.beta2, 0.999),
        "train.max_grad_norm": (train.max_grad_norm, 1.0),
        "train.neftune": (train.neftune, None),
        "train.optimizer": (train.optimizer, "adamw"),
        "adapter.dropout": (adapter.dropout, 0.0),
    }
    if not adapter.kind.own_weights and adapter.alpha is not None and adapter.alpha < adapter.r / 2:
        usual["adapter.alpha"] = (adapter.alpha, float(2 * adapter.r))
    return {name: value for name, (now, value) in usual.items() if now != value}


def _of_settings(bench: Bench, own: Try, best: Try, numbers: Json) -> Item:
    """Find which unusual setting is to blame: all of them as usual, then each of them alone put back."""
    if own.fell >= _SLOWLY:
        course = f"loss {own.first:.3f} to {own.last:.3f} in {own.steps} steps at {own.rate:g}"
        return Item("overfit", "passed", numbers, f"ten rows: {course}, the run's own rate: slowly")
    changes = _healthy(bench)
    usual = _USUAL_RATE[bench.config.adapter.kind.own_weights]
    for rate in dict.fromkeys([usual, own.rate, best.rate]) if changes else ():
        cured = _judged(bench, rate, _course(bench, rate, changes))
        if cured and cured.fell >= max(_HALF, 1.5 * best.fell):
            return _which(bench, cured, changes, numbers)
    return _nothing_helped(bench, best, numbers)


def _which(bench: Bench, cured: Try, changes: Json, numbers: Json) -> Item:
    to_blame = []
    for name in changes:
        without = {key: value for key, value in changes.items() if key != name}
        one = _judged(bench, cured.rate, _course(bench, cured.rate, without)) if without or len(changes) > 1 else None
        if one is None or one.fell < 0.5 * cured.fell:
            to_blame.append(name)
    to_blame = to_blame or list(changes)
    course = f"with {', '.join(f'{name}={_yaml(changes[name])}' for name in to_blame)} the loss goes to {cured.last:.3f}"
    what = "an adapter without effect: " if to_blame == ["adapter.alpha"] else ""
    told = f"{what}{' and '.join(to_blame)} in the way: loss {numbers['first']:.3f} to {numbers['last']:.3f}; {course}"
    following = bench.command("check", *(f"{name}={_yaml(changes[name])}" for name in to_blame), "--only overfit")
    return Item("overfit", "failed", numbers | {"cause": " and ".join(to_blame)}, told, following)


def _yaml(value: Any) -> str:
    return "null" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _nothing_helped(bench: Bench, best: Try, numbers: Json) -> Item:
    course = f"loss {best.first:.3f} to {best.last:.3f} at best, at rate {best.rate:g}"
    if best.fell < _STIRS:
        told = f"an adapter without effect: what is trained moved (by {best.outcome['moved']:.3g}), and the loss did not: {course}"
        return Item("overfit", "failed", numbers | {"cause": "no_effect"}, told, "look at adapter.type, adapter.targets and adapter.alpha")
    if best.still_falls:
        return Item("overfit", "passed", numbers, f"slowly, and still falling after {best.steps} steps: {course}")
    told = f"ten rows are not learned, and no single cause was found: {course}"
    return Item("overfit", "unknown", numbers, told, bench.command("check", "adapter.r=MORE", "--only overfit"))
