"""What the evaluations of a run say: which step is best so far, and for how long nothing has improved. Reads the journal, no more.

A decision follows from the journal's rows alone, so a run that was killed in between decides as one that was not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.base.files import Json, read_lines
from holdfast.config.config import Evaluate
from holdfast.run.folder import RunFolder
from holdfast.run.timeline import read_timeline, settings_at


@dataclass(frozen=True)
class EvaluationState:
    """After some evaluations. best: the row of the lowest loss, the earlier of equals; without_improvement: how many in a row."""

    best: Json | None
    without_improvement: int


def read_evaluations(run: RunFolder) -> list[Json]:
    """Read the rows of evaluations.jsonl, {step, loss, labels, seconds, best} each, by step."""
    return sorted(read_lines(run.evaluations_file), key=lambda row: row["step"])


def best_of(rows: Iterable[Json]) -> Json | None:
    """Return the row of the lowest loss, the earlier of equals; a loss that is not finite is None and never the best."""
    return min((row for row in rows if row["loss"] is not None), key=lambda row: (row["loss"], row["step"]), default=None)


def standing(rows: list[Json], min_delta: float, since: int) -> EvaluationState:
    """Return where a run stands. An evaluation improves when its loss is over `min_delta` below that of the last one that did.

    Evaluations before step `since` are not counted as without improvement: they belong to a run that was extended later.
    """
    reference: float | None = None
    without = 0
    for row in rows:
        loss = row["loss"]
        if loss is not None and (reference is None or loss < reference - min_delta):
            reference, without = loss, 0
        elif row["step"] >= since:
            without += 1
    return EvaluationState(best_of(rows), without)


def stopped_early(rows: list[Json], evaluate: Evaluate, since: int) -> Json | None:
    """Return why a run ends after the last of `rows`, or None when its patience is not used up."""
    now = standing(rows, evaluate.min_delta, since)
    if evaluate.patience is None or now.without_improvement < evaluate.patience:
        return None
    return {
        "step": rows[-1]["step"],
        "best_step": now.best["step"] if now.best else None,
        "best_loss": now.best["loss"] if now.best else None,
        "without_improvement": now.without_improvement,
        "patience": evaluate.patience,
        "min_delta": evaluate.min_delta,
    }


def is_over(run: RunFolder) -> bool:
    """True if the journals say that the run has ended: after its last step, evaluated where it is to be, or early.

    The only meaning of "finished": an exit code says how a process ended, not that its run did.
    """
    committed, timeline = run.committed(), read_timeline(run.timeline_file)
    if not timeline:
        return False
    settings, evaluate = settings_at(timeline, committed + 1), run.config().evaluate
    rows = [row for row in read_evaluations(run) if row["step"] <= committed]
    if evaluate.every is not None and not any(row["step"] == committed for row in rows):
        return False
    return committed >= settings.steps or stopped_early(rows, evaluate, settings.patience_from) is not None
