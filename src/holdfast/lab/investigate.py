"""Find out by experiment why a step fails: again as it was, with fewer samples, under one change at a time. Changes nothing in the run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from holdfast.core.files import Json
from holdfast.core.remedy import RemedyCard
from holdfast.core.run import RunFolder
from holdfast.core.types import Verdict
from holdfast.lab.replay import Change, Host, conclude, new_trial, with_env
from holdfast.lab.search import guilty, smallest_failing

MOST_SECONDS = 3600.0
_START_S = 900.0
_CULPRITS = 4  # rows of one step that are searched for
_SURE = 3  # passes in a row that count as a cure where the failure is not certain


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
        ending = self._host(change.env).ask(folder, _START_S, self.deadline_s)
        result = conclude(folder, self.step, change, ending, time.monotonic() - began)
        self.tell(f"trial {folder.name}: {_words(change)}: {'goes through' if result['finite'] else _failure(result)}")
        return result

    def _host(self, env: dict[str, str | None]) -> Host:
        """The living child of this environment; one of another is let go, because a device has room for one."""
        key = str(sorted(env.items()))
        for other in [name for name, host in self.hosts.items() if name != key or not host.alive()]:
            self.hosts.pop(other).close()
        if key not in self.hosts:
            self.hosts[key] = Host(self.run, with_env(self.environment, env))
        return self.hosts[key]


def in_order(cards: Iterable[RemedyCard], cause: str, machine: Json, refuted: set[str]) -> list[RemedyCard]:
    """The remedies worth a trial: likely cures of the cause first, the cheaper before the dearer, those of this device before others'."""
    amd = any(gpu.get("vendor") == "amd" for gpu in machine.get("gpus") or [])
    here = {"any": True, "gpu": bool(machine.get("gpus")), "amd": amd}
    ranked = sorted(cards, key=lambda card: (not here[card.device], not card.matches(cause), card.cost, card.id))
    return [card for card in ranked if card.id not in refuted]


def investigate(lab: Lab, suspects: Sequence[int], failures: int, remedies: Iterable[RemedyCard]) -> Verdict:
    """What is to blame and what was seen to help. `failures`: how often the step has failed already; `remedies` in the order to try.

    `suspects`: the samples that were tried when it failed; nobody: those of the step.
    """
    try:
        return _investigate(lab, list(suspects), failures, list(remedies))
    except Spent:
        text = f"no answer within {lab.trials} trials and {lab.seconds():.0f} s"
        return Verdict("uncertain", lab.trials, lab.seconds(), text)


def _investigate(lab: Lab, suspects: list[int], failures: int, remedies: list[RemedyCard]) -> Verdict:
    everything = Change(tuple(suspects))
    again = [lab.fails(everything, anew=True)]
    if not again[0]:
        again += [lab.fails(everything, anew=True) for _ in range(2)]
    if not any(again):
        return _verdict(lab, "transient", f"the same step went through in {len(again)} of {len(again)} trials")
    certain = all(again)
    suspects = suspects or lab.outcome(everything).get("samples", [])
    lab.known.setdefault(Change(tuple(suspects)).key(), lab.outcome(everything))
    if certain and suspects:
        found = _rows(lab, suspects)
        if found is not None:
            return found
    tried: list[str] = []
    odds = f"{failures + sum(again)} of {failures + len(again)} times without it"
    for remedy in remedies:
        settings = remedy.change(lab.settings)
        if remedy.settings and not settings:
            continue
        change = Change(tuple(suspects), settings, dict(remedy.env))
        passes = 0
        while passes < (1 if certain else _SURE) and not lab.fails(change, anew=passes > 0):
            passes += 1
        if passes < (1 if certain else _SURE):
            tried.append(remedy.id)
            continue
        if not certain or lab.fails(everything, anew=True):  # taken away again, it fails again
            text = f"{remedy.title}: the step goes through with it ({passes} of {passes} trials) and failed {odds}"
            return _verdict(lab, "setting", text, remedy=remedy.id, settings=settings, env=dict(remedy.env))
        return _verdict(lab, "uncertain", f"with {remedy.id} the step goes through, but without it too, now: {odds}")
    return _verdict(lab, "uncertain", f"it failed {odds}; none of these helped: {', '.join(tried) or 'nothing was left to try'}")


def _rows(lab: Lab, suspects: list[int]) -> Verdict | None:
    """The rows that are to blame, or None where the failure does not follow rows."""
    if _everything_fails(lab, suspects):
        return None
    blamed: list[int] = []
    seen = ""
    left = suspects
    while len(blamed) < _CULPRITS and left and lab.fails(Change(tuple(left))):
        smallest = smallest_failing(left, lambda some: lab.fails(Change(tuple(some))))
        others = sorted(_company(lab, [one for one in left if one not in smallest]), key=lambda one: _length(lab, one))
        rows, words = guilty(smallest, others, lambda some: lab.fails(Change(tuple(some))))
        if not rows:
            return None
        blamed += rows
        seen = seen or words
        left = [one for one in left if one not in blamed]
    if left and lab.fails(Change(tuple(left))):
        return None
    places = [_source(lab, one) for one in blamed]
    failed = lab.outcome(Change(tuple(blamed)))
    first = lab.outcome(Change(tuple(blamed), trace=True)).get("first_nonfinite") if failed["ending"] == "finished" else None
    where = f"; first module that is not finite: {first['module']} ({first['dtype']})" if first else ""
    rest = "the step goes through without it" if left else "it is all the step has"
    text = f"{seen}, {rest}{where}; {_failure(failed)}"
    return _verdict(lab, "rows", text, remedy="quarantine", rows=tuple(blamed), sources=tuple(places))


def _everything_fails(lab: Lab, suspects: list[int]) -> bool:
    """Whether samples as unlike as the shortest and the longest fail alone, both: then it is not a row that is to blame."""
    by_length = sorted(suspects, key=lambda one: _length(lab, one))
    return len(suspects) > 2 and all(lab.fails(Change((one,))) for one in (by_length[0], by_length[-1]))


def _company(lab: Lab, others: list[int]) -> list[int]:
    """Those that were seen to go through, where any were."""
    innocent = {sample for outcome in lab.known.values() if outcome["finite"] for sample in outcome["samples"]}
    return [one for one in others if one in innocent] or others


def _length(lab: Lab, sample: int) -> int:
    return int(_fact(lab, sample, "lengths") or 0)


def _source(lab: Lab, sample: int) -> str:
    return str(_fact(lab, sample, "sources"))


def _fact(lab: Lab, sample: int, name: str) -> Any:
    """A fact about a sample from any trial it took part in."""
    outcomes = (outcome for outcome in lab.known.values() if name in outcome and sample in outcome["samples"])
    return next((outcome[name][outcome["samples"].index(sample)] for outcome in outcomes), None)


def _verdict(lab: Lab, kind: str, evidence: str, **facts: Any) -> Verdict:
    return Verdict(kind, lab.trials, round(lab.seconds(), 1), evidence, **facts)


def _words(change: Change) -> str:
    parts = [f"{len(change.samples)} sample{'s' if len(change.samples) > 1 else ''}"] if change.samples else ["the step"]
    parts += [f"{name} = {value}" for name, value in (change.settings | change.env).items()]
    return ", ".join(parts)


def _failure(outcome: Json) -> str:
    if outcome["ending"] == "finished":
        return f"not finite: loss {outcome['loss']}, gradient norm {outcome['grad_norm']}"
    return str(outcome["ending"])
