"""Choose the next attempt. Pure: no clock, no files; starting it is world/process.py's job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.core.types import Decision, Diagnosis, Launch, Wreck

REPEATS = {"killed": 8, "vanished": 8, "never_started": 8}  # somebody else's doing, often; the rest is the program's own
REPEATS_OTHERWISE = 3
BARREN = 20
FINAL = ("checkpoint_unreadable", "disk_full")  # another attempt would meet the same


@dataclass(frozen=True)
class Past:
    """One dead attempt in short: its cause, how it ended, what it was started with, whether it committed a step."""

    cause: str
    kind: str
    settings: tuple[tuple[str, object], ...]
    progressed: bool


def decide(wreck: Wreck, diagnosis: Diagnosis, history: list[Past], launch: Launch) -> Decision:
    """Resume as it is while the two ledgers allow it. `history` ends with the attempt of `wreck`.

    repeats: same cause, same launch, no new progress. barren: attempts in a row without a newly committed step, whatever the cause.
    """
    if diagnosis.cause in FINAL or wreck.ending.kind == "refused":
        return Decision(None, "none", str(wreck.ending.facts.get("reason") or "; ".join(diagnosis.words())))
    barren = _trailing(history, lambda past: not past.progressed)
    newest = history[-1]
    repeats = _trailing(history, lambda past: not past.progressed and (past.cause, past.kind, past.settings) == _key(newest))
    limit = REPEATS.get(wreck.ending.kind, REPEATS_OTHERWISE)
    where = f"at step {wreck.step}" if wreck.step is not None else "before its first step"
    if repeats >= limit:
        return Decision(None, "none", f"{repeats} attempts in a row {wreck.ending.words()} {where} without a new step")
    if barren >= BARREN:
        return Decision(None, "none", f"{barren} attempts in a row committed no new step, for changing reasons")
    return Decision(launch, "resume", f"{wreck.ending.words()} {where}; starting again from the newest state")


def _key(past: Past) -> tuple[str, str, tuple[tuple[str, object], ...]]:
    return past.cause, past.kind, past.settings


def _trailing(history: list[Past], holds: Callable[[Past], bool]) -> int:
    count = 0
    for past in reversed(history):
        if not holds(past):
            break
        count += 1
    return count
