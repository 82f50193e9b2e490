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
_BEGINS = ("rows", "lr", "random")  # what a step begins with comes before what it leaves


@dataclass(frozen=True)
class Look:
    """One step of one attempt, or (loaded) what an attempt began with behind that step."""

    attempt: int
    step: int
    loaded: bool
    found: dict[str, Any]


def read_fingerprints(run: RunFolder) -> list[Look]:
    """Return what was noted of each step, attempt by attempt, in the order in which it was computed."""
    looks = []
    for attempt in run.attempts():
        for row in read_lines(run.attempt(attempt) / FILE, lambda *_: None):
            step = row.get("step", row.get("loaded"))
            if isinstance(step, int):
                looks.append(Look(attempt, step, "loaded" in row, {name: row[name] for name in WORDS if name in row}))
    return looks


def compare_runs(run: RunFolder, beside: RunFolder) -> Json:
    """Return what `compare_fingerprints` finds of two runs."""
    return compare_fingerprints(read_fingerprints(run), read_fingerprints(beside))


def compare_fingerprints(here: list[Look], there: list[Look]) -> Json:
    """Return {steps, weights_looked_at, departs}: steps that both looked at; departs: None where all is the same, else of the first
    look that is not {step, attempt, what, here, there, loaded}.

    there: what the other training noted; of a step that it computed twice, the last one.
    """
    by_step: dict[int, dict[str, Any]] = {}
    for look in there:
        if not look.loaded:
            by_step[look.step] = look.found
    steps, weights = set(), set()
    for look in here:
        beside = by_step.get(look.step)
        if beside is None:
            continue
        both = [name for name in WORDS if name in look.found and name in beside]
        if not look.loaded:
            steps |= {look.step} if both else set()
        weights |= {look.step} if "weights" in both else set()
        for name in both:
            if look.found[name] != beside[name]:
                where = {"step": look.step, "attempt": look.attempt, "loaded": look.loaded, "what": name}
                departs = where | {"here": look.found[name], "there": beside[name]}
                return {"steps": len(steps), "weights_looked_at": len(weights), "departs": departs}
    return {"steps": len(steps), "weights_looked_at": len(weights), "departs": None}


def in_words(found: Json, other: str) -> str:
    """Return a sentence: where this training departs from the other one, or of how many steps nothing differs."""
    if not found["steps"]:
        return f"not known whether it is {other} over again: no step of both left fingerprints (they need --callback, and one process)"
    looked = f"{counted(found['steps'], 'step')} of both looked at, the weights of {found['weights_looked_at']:,}"
    departs = found["departs"]
    if departs is None:
        same = "random states and weights" if found["weights_looked_at"] else "random states, as far as they were looked at"
        return f"beside {other}: the same rows, learning rates, {same} ({looked})"
    at = f"what attempt {departs['attempt']} loaded behind step {departs['step']:,}" if departs["loaded"] else f"step {departs['step']:,}"
    values = f" ({_value(departs['here'])}, there {_value(departs['there'])})" if departs["what"] == "lr" else ""
    return f"beside {other}: it departs at {at} (attempt {departs['attempt']}): {WORDS[departs['what']]}{values}; {looked}"


def _value(rates: Any) -> str:
    return listed([f"{rate:.6g}" for rate in rates], 4) if isinstance(rates, list) else str(rates)
