"""What is known of an ended attempt, as tests of the next move write it down."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.config.config import Run
from holdfast.run.timeline import Entry
from holdfast.run.types import Diagnosis, Ending, EndingKind, FailureReport
from holdfast.supervision.policy.ledgers import PastAttempt
from holdfast.supervision.policy.next_move import Known
from support.world import SETTINGS

TIMELINE = [Entry(1, SETTINGS, "the plan")]


def a_failure_report(kind: EndingKind = "error", code: int | None = 1, step: int | None = 5) -> FailureReport:
    """An attempt that ended in a step, the one after the last committed."""
    return FailureReport(1, Ending(kind, code), step, "step", (1, 2), (), 4, 4, 0.0, None, None)


def known(failure_report: FailureReport, history: Sequence[PastAttempt] = (), cause: str | Diagnosis = "unknown", **more: Any) -> Known:
    """An attempt that ended in this failure report, the last one in `history`."""
    diagnosis = cause if isinstance(cause, Diagnosis) else Diagnosis(cause, 0.5)
    return Known(failure_report, diagnosis, **{"history": list(history), "timeline": TIMELINE, "asked": Run()} | more)
