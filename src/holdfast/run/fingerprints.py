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
    "lr": "its learning rate is another",
    "random": "its random states are others",
    "weights": "its weights are others",
    "optimizer": "the optimizer's state is another",
}
_TOLD = {"rows": "rows", "lr": "learning rates", "random": "random states", "weights": "weights"}  # of those that nothing differs in


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
    """Return {steps, weights_looked_at, looked_at, departs}: steps that both looked at, what they looked at; departs: None where all is
    the same, else of the first look that is not {step, attempt, what, here, there, loaded}.

    there: what the other training noted; of a step that it computed twice, the last one.
    """
    by_step: dict[tuple[int, int], dict[str, Any]] = {}
    for look in there:
        if not look.loaded:
            by_step[look.training, look.step] = look.found
    steps, weights, names = set(), set(), set()
    for look in here:
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
                where = {"step": look.step, "attempt": look.attempt, "loaded": look.loaded, "what": name}
                departs = where | {"here": look.found[name], "there": beside[name]}
                return _answer(steps, weights, names, departs)
    return _answer(steps, weights, names, None)


def _answer(steps: set[tuple[int, int]], weights: set[tuple[int, int]], names: set[str], departs: Json | None) -> Json:
    looked_at = [name for name in WORDS if name in names]
    return {"steps": len(steps), "weights_looked_at": len(weights), "looked_at": looked_at, "departs": departs}


def in_words(found: Json, other: str) -> str:
    """Return a sentence: where this training departs from the other one, or of how many steps nothing differs."""
    if not found["steps"]:
        return f"not known whether it is {other} over again: no step of both left fingerprints (they need --callback, and one process)"
    looked = f"{counted(found['steps'], 'step')} of both looked at, the weights of {found['weights_looked_at']:,}"
    departs = found["departs"]
    if departs is None:
        same = ", ".join(words for name, words in _TOLD.items() if name in found["looked_at"])
        head, _, last = same.rpartition(", ")
        told = (f"{head} and {last}" if head else last) if found["weights_looked_at"] else f"{same}, as far as they were looked at"
        return f"beside {other}: the same {told} ({looked})"
    at = f"what attempt {departs['attempt']} loaded behind step {departs['step']:,}" if departs["loaded"] else f"step {departs['step']:,}"
    values = f" ({_value(departs['here'])}, there {_value(departs['there'])})" if departs["what"] == "lr" else ""
    return f"beside {other}: it departs at {at} (attempt {departs['attempt']}): {WORDS[departs['what']]}{values}; {looked}"


def _value(rates: Any) -> str:
    return listed([f"{rate:.6g}" for rate in rates], 4) if isinstance(rates, list) else str(rates)
