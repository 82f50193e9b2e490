"""What a supervisor writes down about ended attempts, and reads again: events and wreck.json. Decides nothing."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pydantic import ValidationError

from holdfast.core.config.settings import Settings
from holdfast.core.files import Json, read_json, write_json
from holdfast.core.run.folder import RunFolder
from holdfast.core.types import Diagnosis, Launch, Verdict, Wreck
from holdfast.mind.explain import ending_of
from holdfast.mind.ledgers import Past
from holdfast.mind.moves import Move, Stop


def record(run: RunFolder, wreck: Wreck, diagnosis: Diagnosis, move: Move | Stop, verdict: Verdict | None) -> None:
    """Write everything about an ended attempt down before anything acts on it; wreck.json last, as it closes the attempt."""
    entry: dict[str, Any] = {"diagnosis": {"cause": diagnosis.cause, "confidence": diagnosis.confidence, "clues": diagnosis.words()}}
    if isinstance(move, Move):
        entry["decision"] = {"remedy": move.remedy, "reason": move.reason, "go_on": move.goes_on, "evidence": move.evidence}
        entry |= {"verdict": asdict(verdict)} if verdict is not None else {}
    run.event("attempt_ended", attempt=wreck.attempt, ending=wreck.ending.words(), step=wreck.step, **entry)
    write_json(run.attempt(wreck.attempt) / "wreck.json", wreck.as_json() | entry)


def read_history(run: RunFolder) -> list[Past]:
    """Ended attempts since the run was last given up or stopped by its user, oldest first."""
    history: list[Past] = []
    for number in run.attempts():
        wreck = read_json(run.attempt(number) / "wreck.json")
        if wreck is None:
            continue
        if not wreck.get("decision", {}).get("go_on"):
            history.clear()
            continue
        settings = _settings_of((read_json(run.attempt(number) / "launch.json") or {}).get("settings", {}))
        progressed = wreck["committed_after"] > wreck["committed_before"]
        remedied = wreck["decision"]["remedy"] not in ("resume", "none", "wait")
        ending, verdict = ending_of(wreck["ending"]), wreck.get("verdict")
        seen = _by_chance(verdict), ending.from_outside, bool(verdict and verdict.get("trials"))
        history.append(Past(wreck["step"], wreck["diagnosis"]["cause"], ending.kind, settings, progressed, remedied, *seen))
    return history


def _by_chance(verdict: Json | None) -> bool:
    """Whether the lab saw the step go through as it is."""
    odds = verdict.get("odds") if verdict else None
    return odds is not None and odds[0] < odds[1]


def failures_so_far(run: RunFolder) -> Json:
    """Attempts that died, and seconds in which attempts ran: what the checkpoint interval goes by."""
    wrecks = [wreck for number in run.attempts() if (wreck := read_json(run.attempt(number) / "wreck.json"))]
    endings = [wreck["ending"] for wreck in wrecks]
    failures = sum(ending["kind"] not in ("finished", "interrupted", "device_gone") for ending in endings)
    return {"failures": failures, "running_s": sum(ending.get("seconds") or 0.0 for ending in endings)}


def past(wreck: Wreck, diagnosis: Diagnosis, launch: Launch) -> Past:
    """The attempt that has just ended, as `read_history` will know it."""
    progressed, outside = wreck.committed_after > wreck.committed_before, wreck.ending.from_outside
    return Past(wreck.step, diagnosis.cause, wreck.ending.kind, launch.settings, progressed, from_outside=outside)


def _settings_of(launched: Json) -> Settings | None:
    try:
        return Settings.model_validate(launched)
    except ValidationError:
        return None
