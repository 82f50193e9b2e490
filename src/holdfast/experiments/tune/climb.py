"""Climb from plain kernels: a rung is kept where it computes the same, goes on doing so, and is faster. Changes no run.

Each rung is tried on top of those that were kept, so two that do not go together are found out. The proof: loss and gradients at the
shortest, longest, fullest and an awkward shape against the reference, from one state; then a course of updates; then speed in alternation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from holdfast.base.files import Json
from holdfast.base.units import span
from holdfast.base.wait import doing
from holdfast.book.kinds.rung import RungCard
from holdfast.config.settings import PartialSettings
from holdfast.experiments.check.bench import Bench
from holdfast.experiments.check.precision import SHAPES, apart
from holdfast.experiments.laboratory import finished, how, succeeded

REFERENCE: PartialSettings = {"attention": "eager", "dtype": "fp32", "packing": False, "liger": False, "fused": False, "varlen": False}
_COURSE, _COURSE_S, _COURSE_GAP = 24, 60.0, 2e-2  # steps with updates; seconds; share of the loss
_AGAIN = 2  # more alternations where the first ones tell a difference: on a busy machine one in twelve does so by accident
_TIMED, _ROUNDS, _FASTER = 3, 3, 1.03  # steps; alternations; times the other's speed, in each of them, for a difference to be told
_PATIENCE = 30.0  # times what the reference took


@dataclass
class Rung:
    """What was found of one rung. within: by how much its gradient differed from the reference's, as a share."""

    id: str
    stable: bool | None = None
    within: float | None = None
    tokens_per_second: float | None = None
    peak_bytes: int | None = None
    verdict: str = "not here"
    why: str = ""

    def as_json(self) -> Json:
        return {
            "id": self.id,
            "stable": self.stable,
            "identical_to_reference_within": self.within,
            "tokens_per_second": self.tokens_per_second,
            "peak_bytes": self.peak_bytes,
            "verdict": self.verdict,
            "why": self.why,
        }


@dataclass
class Climb:
    """The way up. settings, env: of the rungs kept so far, on top of the reference."""

    bench: Bench
    base: Json  # the run's own settings, for what "half" and "double" are of
    tell: Callable[[Rung], None]
    settings: Json = field(default_factory=lambda: dict(REFERENCE))
    env: dict[str, str | None] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)
    rungs: list[Rung] = field(default_factory=list)
    state: Json = field(default_factory=dict)
    reference: Json = field(default_factory=dict)
    course: Json = field(default_factory=dict)
    rate: float | None = None
    rung_s: float = 0.0  # the longest that a rung takes, by the reference's own time

    def begin(self) -> bool:
        """Compute the reference; return whether it goes through. Without it nothing is proven."""
        rung = Rung("reference", verdict="kept", why="plain kernels in fp32")
        steps = {"steps": 3, "rate": self.bench.config.train.lr, "most_tokens": self.bench.most_tokens, "leave_state": True}
        self.state = self._ask(self.settings, {}, **steps)
        outcome, began = self.state, time.monotonic()
        if succeeded(outcome):
            outcome = self.reference = self._ask(self.settings, {}, **self._from(still=True, rows="shapes", steps=len(SHAPES), keep=True))
        if succeeded(outcome):
            outcome = self.course = self._ask(self.settings, {}, **self._along(_COURSE))
        if succeeded(outcome):
            rung.stable, rung.within, timed = True, 0.0, time.monotonic()
            self.rate, rung.peak_bytes = self._speed(self.settings, {})
            rung.tokens_per_second = self.rate
            self.rung_s = timed - began + 2 * (_ROUNDS + _AGAIN) * (time.monotonic() - timed)
        else:
            rung.stable, rung.verdict, rung.why = False, "refused", self._failure(outcome)
        self._done(rung)
        return bool(rung.stable)

    def up(self, card: RungCard, device: str) -> None:
        """Try a rung on top of those that were kept; keep it where it holds and is faster."""
        rung = Rung(card.id)
        change = card.change(self.base | self.settings)
        if device not in card.hits:
            rung.why = f"it is for {', '.join(card.hits)}, and this is {device}"
        elif not change and not card.env:
            rung.verdict, rung.why = "there already", "the rungs below have it"
        else:
            self._try(rung, self.settings | change, self.env | card.env)
            if rung.verdict == "kept":
                self.settings, self.env = self.settings | change, self.env | card.env
                self.kept.append(card.id)
                self.rate = rung.tokens_per_second
        self._done(rung)

    def _try(self, rung: Rung, settings: Json, env: dict[str, str | None]) -> None:
        against = {"against": self.reference["folder"]}
        outcome = self._ask(settings, env, **self._from(still=True, rows="shapes", steps=len(SHAPES)), **against)
        dtype = settings["dtype"]
        found = apart(dtype, self.reference, outcome)
        rung.within, rung.peak_bytes = found.get("gradient_gap"), outcome.get("peak_bytes")
        if found["holds"] is not True:
            rung.stable, rung.verdict, rung.why = False, "refused", found["why"] or self._failure(outcome)
            return
        if why := self._leaves_the_course(self._ask(settings, env, **self._along(len(self.course["rows"])))):
            rung.stable, rung.verdict, rung.why = False, "refused", why
            return
        rung.stable = True
        self._race(rung, settings, env)

    def _leaves_the_course(self, outcome: Json) -> str:
        """Return why a course of updates is not the reference's; empty where it is."""
        if not succeeded(outcome):
            return self._failure(outcome)
        for theirs, mine in zip(self.course["rows"], outcome["rows"], strict=False):
            gap = abs(mine["loss"] - theirs["loss"]) / max(abs(theirs["loss"]), 0.1)
            if gap > _COURSE_GAP:
                return f"its loss leaves the reference's at step {mine['step']}: {mine['loss']:.4f} and {theirs['loss']:.4f}"
        return ""

    def _race(self, rung: Rung, settings: Json, env: dict[str, str | None]) -> None:
        """Measure speed in alternation with the settings below: other work on the machine affects both.

        Faster or slower is what was so in each alternation: in one alone, other work may have made it so.
        """
        below: list[float] = []
        above: list[float] = []
        peaks: list[int] = []
        for number in range(_ROUNDS + _AGAIN):
            if number == _ROUNDS and _told_in_each(below, above) == "no difference told":
                break
            below.append(self._speed(self.settings, self.env)[0] or 0.0)
            other, peak = self._speed(settings, env)
            above.append(other or 0.0)
            peaks += [peak] if peak is not None else []
        rung.tokens_per_second, rung.peak_bytes = round(max(above), 1) or None, max(peaks, default=None)
        rung.verdict = _told_in_each(below, above)
        if not all(below) or not all(above):
            rung.why = "a speed was not measured"
            return
        ratios = sorted(mine / theirs for mine, theirs in zip(above, below, strict=True))
        rung.why = f"{ratios[0]:.2f} to {ratios[-1]:.2f} times the speed below, in {len(ratios)} alternations"

    def _speed(self, settings: Json, env: dict[str, str | None]) -> tuple[float | None, int | None]:
        """Measure (tokens/s, bytes) at the fullest step."""
        outcome = self._ask(settings, env, rows="fullest", steps=_TIMED, most_tokens=2 * self.bench.most_tokens, still=True)
        if not succeeded(outcome):
            return None, None
        return max(row["tokens"] / max(row["seconds"], 1e-9) for row in outcome["rows"]), outcome["peak_bytes"]

    def _from(self, **request: object) -> Json:
        return {"from_state": self.state["folder"], "budget": self.base["micro_batch_tokens"], **request}

    def _along(self, steps: int) -> Json:
        rate = self.bench.config.train.lr
        return {"steps": steps, "rate": rate, "most_tokens": self.bench.most_tokens // 2, "most_seconds": _COURSE_S, "least_steps": 4}

    def _ask(self, settings: Json, env: dict[str, str | None], **request: object) -> Json:
        took = float(self.reference.get("seconds_in_all") or 0.0) + float(self.course.get("seconds_in_all") or 0.0)
        patience = max(60.0, _PATIENCE * took) if took else None
        keep = {name: value for name, value in self.base.items() if name in ("device", "threads", "micro_batch_tokens", "frozen")}
        known = keep | settings
        timed = request.get("rows") == "fullest"  # with the run's own kernels: those that promise bits may be slower
        of = "steps" if "rate" in request else "passes for its speed" if timed else "passes"
        with doing(f"{request['steps']} {of}"):
            return self.bench.lab.ask("course", settings=known, deterministic=not timed, env=env, most_s=patience, **request)

    def _failure(self, outcome: Json) -> str:
        if not finished(outcome):
            return how(outcome)
        return f"not finite at step {outcome['rows'][-1]['step']}"

    def _done(self, rung: Rung) -> None:
        self.rungs.append(rung)
        self.tell(rung)


def _told_in_each(below: Sequence[float], above: Sequence[float]) -> str:
    """Return the verdict on a rung's speeds, each measured beside one of the settings below: what they say in every alternation."""
    pairs = [*zip(below, above, strict=True)]
    if all(mine > _FASTER * theirs > 0 for theirs, mine in pairs):
        return "kept"
    return "slower" if all(theirs > _FASTER * mine > 0 for theirs, mine in pairs) else "no difference told"


def climb(bench: Bench, base: Json, cards: Iterable[RungCard], device: str, tell: Callable[[Rung], None]) -> Climb:
    """Try all rungs in order, as far as each holds."""
    way = Climb(bench, base, tell)
    with doing("reference"):
        holds = way.begin()
    if holds:
        ordered = sorted(cards, key=lambda card: card.order)
        for number, card in enumerate(ordered, 1):
            left = way.rung_s * sum(device in later.hits for later in ordered[number - 1 :])
            with doing(f"{card.id} (rung {number} of {len(ordered)}; {span(left)} left for all at the most, as the reference went)"):
                way.up(card, device)
    return way
