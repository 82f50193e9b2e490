"""Where two trainings of one command first depart from each other, by the fingerprints that the callback left of each step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.base.files import Json, read_lines
from holdfast.base.units import counted, listed
from holdfast.run.folder import RunFolder

FILE = "fingerprints.jsonl"  # as callback/fingerprints.py writes it
WORDS = {
    "rows": "its rows are others",
    "batch": "what is in its rows is another",
    "lr": "its learning rate is another",
    "random": "its random states are others",
    "weights": "its weights are others",
    "optimizer": "the optimizer's state is another",
}
_CAUSES = ("rows", "batch", "lr", "random")  # of a step, noted where it begins
_TOLD = {"rows": "rows", "batch": "batches", "lr": "learning rates", "random": "random states", "weights": "weights"}  # of what is the same


@dataclass(frozen=True)
class Look:
    """One step of one attempt, or (loaded) what an attempt began with behind that step. training: of its process, counted from 1."""

    attempt: int
    step: int
    loaded: bool
    found: dict[str, Any]
    training: int = 1


def read_fingerprints(run: RunFolder) -> list[Look]:
    """Return what was noted of each step, attempt by attempt, in the order in which it was computed."""
    looks = []
    for attempt in run.attempts():
        training = 1
        for row in read_lines(run.attempt(attempt) / FILE, lambda *_: None):
            training = int(row.get("training", training))
            step = row.get("step", row.get("loaded"))
            if isinstance(step, int):
                looks.append(Look(attempt, step, "loaded" in row, {name: row[name] for name in WORDS if name in row}, training))
    return looks


def compare_runs(run: RunFolder, beside: RunFolder) -> Json:
    """Return what `compare_fingerprints` finds of two runs."""
    return compare_fingerprints(read_fingerprints(run), read_fingerprints(beside))


def compare_fingerprints(here: list[Look], there: list[Look]) -> Json:
    """Return {steps, weights_looked_at, weights_last, looked_at, departs}: steps that both looked at, the last of them whose weights were,
    what they looked at; departs: None where all is the same, else of the first look that is not {step, attempt, what, here, there, loaded,
    not_before, same_between}.

    there: what the other training noted; of a step that it computed twice, the last one. not_before: the first step that may have departed,
    as those between were not looked at; same_between: what was looked at, and the same, in each step from there on.
    """
    by_step: dict[tuple[int, int], dict[str, Any]] = {}
    for look in there:
        if not look.loaded:
            by_step[look.training, look.step] = look.found
    steps, weights, names = set(), set(), set()
    same: dict[str, list[int]] = {}  # of this attempt and training: the steps at which each was the same
    began, before = 0, None
    for look in here:
        if before != (before := (look.attempt, look.training)) or look.loaded:
            same, began = {}, look.step if look.loaded else 0
        at = (look.training, look.step)
        beside = by_step.get(at)
        if beside is None:
            continue
        both = [name for name in WORDS if name in look.found and name in beside]
        if not look.loaded:
            steps |= {at} if both else set()
        weights |= {at} if "weights" in both else set()
        names |= set(both)
        for name in both:
            if look.found[name] != beside[name]:
                at_step = {"step": look.step, "attempt": look.attempt, "loaded": look.loaded, "what": name}
                departs = at_step | {"here": look.found[name], "there": beside[name]} | _unseen(name, look, same, began)
                return _answer(steps, weights, names, departs)
            same.setdefault(name, []).append(look.step)
    return _answer(steps, weights, names, None)


def _unseen(name: str, look: Look, same: dict[str, list[int]], began: int) -> Json:
    """Return since when nobody looked at what departs at a look, and what was looked at in each step since: {not_before, same_between}."""
    if look.loaded:
        return {"not_before": look.step, "same_between": []}
    first = same.get(name, [began])[-1] + 1
    between = set(range(first, look.step + (name not in _CAUSES)))  # the causes of what a step leaves are noted where it begins
    return {"not_before": first, "same_between": [one for one in _CAUSES if one in same and between <= set(same[one])]}


def _answer(steps: set[tuple[int, int]], weights: set[tuple[int, int]], names: set[str], departs: Json | None) -> Json:
    told = {"steps": len(steps), "weights_looked_at": len(weights), "weights_last": max(weights)[1] if weights else None}
    return told | {"looked_at": [name for name in WORDS if name in names], "departs": departs}


def in_words(found: Json, other: str) -> str:
    """Return a sentence: where this training departs from the other one, or of how many steps nothing differs."""
    if not found["steps"]:
        return f"not known whether it is {other} over again: no step of both left fingerprints (they need --callback, and one process)"
    last = f", last of step {found['weights_last']:,}" if 1 < found["weights_looked_at"] < found["steps"] else ""
    looked = f"{counted(found['steps'], 'step')} of both looked at, the weights of {found['weights_looked_at']:,}{last}"
    departs = found["departs"]
    if departs is None:
        same = ", ".join(words for name, words in _TOLD.items() if name in found["looked_at"])
        head, _, last = same.rpartition(", ")
        told = (f"{head} and {last}" if head else last) if found["weights_looked_at"] else f"{same}, as far as they were looked at"
        return f"beside {other}: the same {told} ({looked})"
    values = f" ({_value(departs['here'])}, there {_value(departs['there'])})" if departs["what"] == "lr" else ""
    between = ""
    if departs["not_before"] < departs["step"]:
        same = ", ".join(_TOLD[name] for name in departs["same_between"])
        between = ", not looked at in each step between" + (f" (the same in each: {same})" if same else "")
    what = f"{WORDS[departs['what']]}{values}{between}"
    return f"beside {other}: it departs at {where(departs)} (attempt {departs['attempt']}): {what}; {looked}"


def where(departs: Json) -> str:
    """Say at which step a training departs, or between which, where not each was looked at."""
    step, first = departs["step"], departs["not_before"]
    if departs["loaded"]:
        return f"what attempt {departs['attempt']} loaded behind step {step:,}"
    return f"step {step:,}" if first == step else f"one of steps {first:,} to {step:,}"


def _value(rates: Any) -> str:
    return listed([f"{rate:.6g}" for rate in rates], 4) if isinstance(rates, list) else str(rates)
