"""What a supervisor writes down about ended attempts, and reads again: events and wreck.json. Decides nothing."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pydantic import ValidationError

from holdfast.base.files import Json, read_json
from holdfast.config.settings import Settings
from holdfast.report.summarise import Journals
from holdfast.run.attempt import close, closed_attempts, read_launch_spec
from holdfast.run.folder import RunFolder
from holdfast.run.types import Diagnosis, FailureReport, Launch, Verdict
from holdfast.supervision.policy.ledgers import PastAttempt
from holdfast.supervision.policy.moves import Done, Move, StopRequested


def record(
    run: RunFolder, failure_report: FailureReport, diagnosis: Diagnosis, move: Move | StopRequested | Done, verdict: Verdict | None
) -> None:
    """Write everything about an ended attempt down before anything acts on it; wreck.json last, as it closes the attempt."""
    entry: dict[str, Any] = {"diagnosis": {"cause": diagnosis.cause, "confidence": diagnosis.confidence, "clues": diagnosis.words()}}
    if isinstance(move, Move):
        entry["decision"] = {"remedy": move.remedy, "reason": move.reason, "go_on": move.goes_on, "evidence": move.evidence}
        entry |= {"verdict": asdict(verdict)} if verdict is not None else {}
    run.event("attempt_ended", attempt=failure_report.attempt, ending=failure_report.ending.words(), step=failure_report.step, **entry)
    close(run.attempt(failure_report.attempt), failure_report.as_json() | entry)


def journals_of(run: RunFolder, rows: list[Json]) -> Journals:
    """Return what the run folder tells of its attempts, for the summary. rows: of its steps."""
    orders = {number: read_launch_spec(run.attempt(number)) for number in run.attempts()}
    return Journals(
        rows,
        list(run.events()),
        [end.facts for _, end in closed_attempts(run)],
        launches={number: found.facts if found else {} for number, found in orders.items()},
        endings={number: read_json(run.attempt(number) / "ending.json") or {} for number in orders},
    )


def read_history(run: RunFolder) -> list[PastAttempt]:
    """Return the attempts that ended since the run was last given up or stopped by its user, oldest first."""
    history: list[PastAttempt] = []
    for number, end in closed_attempts(run):
        if not end.goes_on:
            history.clear()
            continue
        orders, remedied = read_launch_spec(run.attempt(number)), end.remedy not in ("resume", "none", "wait")
        settings = _settings_of(orders.settings if orders else {})
        seen = end.by_chance, end.ending.from_outside, end.trials > 0
        history.append(PastAttempt(end.step, end.cause, end.ending.kind, settings, end.progressed, remedied, *seen))
    return history


def failures_so_far(run: RunFolder) -> Json:
    """Return the attempts that died, and the seconds in which attempts ran: what the checkpoint interval goes by."""
    endings = [end.ending for _, end in closed_attempts(run)]
    failures = sum(ending.kind not in ("finished", "interrupted", "device_gone") for ending in endings)
    return {"failures": failures, "running_s": sum(ending.seconds or 0.0 for ending in endings)}


def past(failure_report: FailureReport, diagnosis: Diagnosis, launch: Launch) -> PastAttempt:
    """Return the attempt that has just ended, as `read_history` will know it."""
    progressed, outside = failure_report.committed_after > failure_report.committed_before, failure_report.ending.from_outside
    return PastAttempt(failure_report.step, diagnosis.cause, failure_report.ending.kind, launch.settings, progressed, from_outside=outside)


def _settings_of(launched: Json) -> Settings | None:
    try:
        return Settings.model_validate(launched)
    except ValidationError:
        return None
