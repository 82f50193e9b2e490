"""Find out by experiment why a step fails: again as it was, with fewer samples, under one change at a time. Changes nothing in the run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from math import comb
from typing import Any

from holdfast.core.files import Json
from holdfast.core.remedy import RemedyCard
from holdfast.core.run import RunFolder
from holdfast.core.types import Verdict
from holdfast.lab.replay import Change, Host, conclude, new_trial, with_env
from holdfast.lab.search import guilty, smallest_failing, twins

MOST_SECONDS = 3600.0
_START_S = 900.0
_CULPRITS = 4  # rows of one step that are searched for
_TRANSIENT = 3  # passes in a row after which a failure counts as gone
_AGAIN = 2  # more failures of a culprit, and more passes of what is left, before a row is accused
ACCIDENT = 0.004  # how likely a change may look like a cure by accident; five failures without it and five passes with it
_CHANCES = 8  # times as rare where the failure comes and goes: then many changes get their chance of an accident
_BLOCKS = ((1, 1), (4, 3), (5, 5), (5, 5))  # trials with a change and without it, taking turns


class Spent(Exception):
    """The budget of trials is used up, or the user wants to stop."""


class Lab:
    """The trials of one failing step: counted, cached by what they ask, kept under RUN/trials."""

    def __init__(
        self,
        run: RunFolder,
        step: int,
        environment: dict[str, str],
        settings: dict[str, Any],
        deadline_s: float,
        tell: Callable[[str], None],
        stop: Callable[[], bool],
    ) -> None:
        self.run, self.step, self.environment, self.settings = run, step, environment, settings
        self.deadline_s, self.tell, self.stop = deadline_s, tell, stop
        self.trials, self.most_trials = 0, run.config().run.trials
        self.unchanged: list[bool] = []  # whether the step failed, each time it was tried as it was
        self.began = time.monotonic()
        self.known: dict[str, Json] = {}
        self.hosts: dict[str, Host] = {}

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: object) -> None:
        for host in self.hosts.values():
            host.close()

    def fails(self, change: Change, anew: bool = False) -> bool:
        """Whether the step fails under `change`; asked once, or again with `anew`. Raises Spent."""
        return not self.outcome(change, anew)["finite"]

    def fails_unchanged(self, suspects: Sequence[int]) -> bool:
        """Try the step as it was, once more."""
        self.unchanged.append(self.fails(Change(tuple(suspects)), anew=True))
        return self.unchanged[-1]

    def odds(self) -> tuple[int, int] | None:
        """How often the step failed as it was, of how many trials; None where it was not tried."""
        return (sum(self.unchanged), len(self.unchanged)) if self.unchanged else None

    def outcome(self, change: Change, anew: bool = False) -> Json:
        key = change.key()
        if anew or key not in self.known:
            self.known[key] = self._replay(change)
        return self.known[key]

    def seconds(self) -> float:
        return time.monotonic() - self.began

    def _replay(self, change: Change) -> Json:
        if self.trials >= self.most_trials or self.seconds() > MOST_SECONDS or self.stop():
            raise Spent
        self.trials += 1
        began = time.monotonic()
        folder = new_trial(self.run, self.step, change)
        steps = 1 if change.until is None else change.until - self.step + 1
        ending = self._host(change.env).ask(folder, _START_S, self.deadline_s * steps)
        result = conclude(folder, self.step, change, ending, time.monotonic() - began)
        self.tell(f"trial {folder.name}: {_words(change)}: {'goes through' if result['finite'] else _failure(result)}")
        return result

    def sources(self, samples: Sequence[int]) -> tuple[str, ...]:
        """The rows, as file:line, of samples that took part in a trial."""
        return tuple(str(self.fact(one, "sources")) for one in samples)

    def fact(self, sample: int, name: str) -> Any:
        """A fact about a sample from any trial it took part in."""
        outcomes = (outcome for outcome in self.known.values() if name in outcome and sample in outcome["samples"])
        return next((outcome[name][outcome["samples"].index(sample)] for outcome in outcomes), None)

    def _host(self, env: dict[str, str | None]) -> Host:
        """The living child of this environment; one of another is let go, because a device has room for one."""
        key = str(sorted(env.items()))
        for other in [name for name, host in self.hosts.items() if name != key or not host.alive()]:
            self.hosts.pop(other).close()
        if key not in self.hosts:
            self.hosts[key] = Host(self.run, with_env(self.environment, env))
        return self.hosts[key]


def in_order(cards: Iterable[RemedyCard], cause: str, machine: Json, refuted: set[str], allow_cpu: bool) -> list[RemedyCard]:
    """The remedies worth a trial: likely cures of the cause first, the cheaper before the dearer, those of this device before others'.

    The last resort comes last, where it is allowed and there is a GPU to leave.
    """
    amd = any(gpu.get("vendor") == "amd" for gpu in machine.get("gpus") or [])
    here = {"any": True, "gpu": bool(machine.get("gpus")), "amd": amd}
    offered = [card for card in cards if not card.last_resort or (allow_cpu and here["gpu"])]
    ranked = sorted(offered, key=lambda card: (card.last_resort, not here[card.device], not card.matches(cause), card.cost, card.id))
    return [card for card in ranked if card.id not in refuted]


def investigate(lab: Lab, suspects: Sequence[int], failures: int, remedies: Iterable[RemedyCard]) -> Verdict:
    """What is to blame and what was seen to help. `failures`: how often the step has failed already; `remedies` in the order to try.

    `suspects`: the samples that were tried when it failed; nobody: those of the step.
    """
    try:
        return _investigate(lab, list(suspects), failures, list(remedies))
    except Spent:
        text = f"no answer within {lab.trials} trials and {lab.seconds():.0f} s{_told(lab)}"
        return _verdict(lab, "uncertain", text)


def _investigate(lab: Lab, suspects: list[int], failures: int, remedies: list[RemedyCard]) -> Verdict:
    if not any(lab.fails_unchanged(suspects) for _ in range(_TRANSIENT)):
        return _verdict(lab, "transient", f"the same step went through in {len(lab.unchanged)} of {len(lab.unchanged)} trials")
    certain = all(lab.unchanged)
    everything = Change(tuple(suspects))
    suspects = suspects or lab.outcome(everything).get("samples", [])
    lab.known.setdefault(Change(tuple(suspects)).key(), lab.outcome(everything))
    if certain and suspects:
        found = _rows(lab, suspects)
        if found is not None:
            return found
    outcome = lab.outcome(everything)
    first = None if outcome["finite"] else _first_nonfinite(lab, suspects, outcome)
    tried: list[str] = []
    for remedy in remedies:
        settings = remedy.change(lab.settings)
        if remedy.settings and not settings:
            continue
        passes = _passes(lab, suspects, Change(tuple(suspects), settings, dict(remedy.env)))
        if passes:
            failed, trials = lab.odds() or (0, 0)
            odds = f"failed {failures + failed} of {failures + trials} times without it"
            text = f"{remedy.title}: the step goes through with it ({passes} of {passes} trials) and {odds}{_where(first)}"
            facts: Json = {"remedy": remedy.id, "settings": settings, "env": dict(remedy.env)}
            return _verdict(lab, "setting", text, cause=first["cause"] if first else None, **facts)
        tried.append(remedy.id)
    helped = f"none of these was seen to help: {', '.join(tried)}" if tried else "nothing was left to try"
    return _verdict(lab, "uncertain", f"{helped}{_told(lab)}{_where(first)}", cause=first["cause"] if first else None)


def _told(lab: Lab) -> str:
    odds = lab.odds()
    return f"; as it is, the step failed in {odds[0]} of {odds[1]} trials" if odds else ""


def _passes(lab: Lab, suspects: list[int], change: Change) -> int:
    """In how many trials the step went through with `change`, where that is no accident; 0 where it fails or cannot be told.

    Trials with the change and without it take turns, until so many failures on one side alone are rare (Fisher's exact test).
    """
    passes = 0
    for with_it, without_it in _BLOCKS:
        for _ in range(with_it):
            if lab.fails(change, anew=passes > 0):
                return 0
            passes += 1
        for _ in range(without_it):
            lab.fails_unchanged(suspects)
        limit = ACCIDENT if all(lab.unchanged) else ACCIDENT / _CHANCES
        if by_accident(sum(lab.unchanged), len(lab.unchanged), passes) <= limit:
            return passes
    return 0


def by_accident(failed: int, without: int, passes: int) -> float:
    """The chance that `failed` failures among `without + passes` trials that are all alike fall on those without the change."""
    return comb(without, failed) / comb(without + passes, failed)


def _rows(lab: Lab, suspects: list[int]) -> Verdict | None:
    """The rows that are to blame, or None where the failure does not follow rows."""
    if _everything_fails(lab, suspects):
        return None
    blamed: list[list[int]] = []
    seen = ""
    left = suspects
    while len(blamed) < _CULPRITS and left and lab.fails(Change(tuple(left))):
        smallest = smallest_failing(left, lambda some: lab.fails(Change(tuple(some))))
        if len(smallest) > 2:
            return None  # so many that fail together only are a shape
        others = sorted(_company(lab, [one for one in left if one not in smallest]), key=lambda one: _length(lab, one))
        alike = twins(smallest, others, {one: _length(lab, one) for one in left})
        rows, words = guilty(smallest, others, lambda some: lab.fails(Change(tuple(some))), alike)
        if not rows:
            return None
        blamed.append(rows)
        seen = seen or words
        left = [one for one in left if one not in rows]
    if not _holds(lab, blamed, left):
        return None
    rows = [one for some in blamed for one in some]
    if len(blamed) > 1 and len(rows) > len(blamed):
        return None  # one pair may be unlucky; pairs and more beside them are a number of tokens
    if not lab.fails(Change(tuple(rows))):
        return None
    failed = lab.outcome(Change(tuple(rows)))
    first = _first_nonfinite(lab, rows, failed)
    rest = "the step goes through without it" if left else "it is all the step has"
    text = f"{seen}, {rest}{_where(first)}; {_failure(failed)}"
    cause = first["cause"] if first else None
    return _verdict(lab, "rows", text, remedy="quarantine", rows=tuple(rows), sources=lab.sources(rows), cause=cause)


def _holds(lab: Lab, blamed: list[list[int]], left: list[int]) -> bool:
    """Whether the culprits fail again, each time, and what is left goes through, each time: what fails now and then accuses nobody."""
    rest = Change(tuple(left))
    if left and (lab.fails(rest) or any(lab.fails(rest, anew=True) for _ in range(_AGAIN))):
        return False
    if not all(lab.fails(Change(tuple(rows)), anew=True) for rows in blamed for _ in range(_AGAIN)):
        return False
    return not any(lab.fails(Change((row,)), anew=True) for rows in blamed if len(rows) > 1 for row in rows for _ in range(_AGAIN))


def _first_nonfinite(lab: Lab, samples: list[int], failed: Json) -> Json | None:
    """The first operation whose result is not finite, where that is how these samples failed."""
    if failed["ending"] != "finished":
        return None
    found: Json | None = lab.outcome(Change(tuple(samples), trace=True)).get("first_nonfinite")
    return found


def _where(first: Json | None) -> str:
    """Where values stop being finite, and what the same operation gives in fp32 on the CPU, in words."""
    if first is None:
        return ""
    return f"; first not finite: {first['operation']} ({first['dtype']}) in {first['module']}, {first['says']}"


def _everything_fails(lab: Lab, suspects: list[int]) -> bool:
    """Whether samples as unlike as the shortest and the longest fail alone, both: then it is not a row that is to blame."""
    by_length = sorted(suspects, key=lambda one: _length(lab, one))
    return len(suspects) > 2 and all(lab.fails(Change((one,))) for one in (by_length[0], by_length[-1]))


def _company(lab: Lab, others: list[int]) -> list[int]:
    """Those that were seen to go through, where any were."""
    innocent = {sample for outcome in lab.known.values() if outcome["finite"] for sample in outcome["samples"]}
    return [one for one in others if one in innocent] or others


def _length(lab: Lab, sample: int) -> int:
    return int(lab.fact(sample, "lengths") or 0)


def _verdict(lab: Lab, kind: str, evidence: str, **facts: Any) -> Verdict:
    return Verdict(kind, lab.trials, round(lab.seconds(), 1), evidence, odds=lab.odds(), **facts)


def _words(change: Change) -> str:
    parts = [f"{len(change.samples)} sample{'s' if len(change.samples) > 1 else ''}"] if change.samples else ["the step"]
    parts = parts if change.until is None else [f"the steps up to {change.until}"]
    parts += [f"{name} = {value}" for name, value in (change.settings | change.env).items()]
    return ", ".join(parts)


def _failure(outcome: Json) -> str:
    if outcome["ending"] == "finished":
        return f"not finite: loss {outcome['loss']}, gradient norm {outcome['grad_norm']}"
    return str(outcome["ending"])
