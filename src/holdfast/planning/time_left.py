"""How long a run's steps still take, with the evaluations on the way, judged by its journals. Reads a few hundred of their newest rows."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdfast.base.files import Json, newest_lines
from holdfast.planning.duration import FORWARD, remaining
from holdfast.run.folder import RunFolder
from holdfast.run.plan import Seconds, read_plan

_LOOKED_AT = 1 << 18  # bytes of a journal: hundreds of steps


@dataclass(frozen=True)
class HeldOutWork:
    """What a run is to do beside its steps. every: steps between evaluations, None: none on the way; rows: that each of them asks."""

    every: int | None = None
    rows: int = 0


def judged(run: RunFolder) -> HeldOutWork:
    """Return the evaluations of a run; none of a command's, and of one that is not planned yet."""
    plan = read_plan(run.plan_file) if run.config_file.exists() else None
    if plan is None:
        return HeldOutWork()
    evaluate, held_out = run.config().evaluate, plan.rows.held_out
    return HeldOutWork(evaluate.every if held_out else None, min(evaluate.rows or held_out, held_out))


def time_left(run: RunFolder, step: int, steps: int, evaluations: HeldOutWork) -> Seconds | None:
    """Estimate how long the steps after `step` take, by the last steps of the process that trains; None where nobody can tell.

    Between two processes there may lie a failure, or a night in which nobody trained: neither is a pace of steps.
    """
    journal = run.progress_file if run.command_file.exists() else run.steps_file
    rows = [row for row in newest_lines(journal, _LOOKED_AT) if isinstance(row.get("time"), float) and isinstance(row.get("step"), int)]
    rows = [row for row in rows if row.get("attempt") == rows[-1].get("attempt")]
    took = {row["step"]: row["seconds"] for row in newest_lines(run.evaluations_file, _LOOKED_AT)} if evaluations.every else {}
    left = remaining(_without(rows, took), steps - step)
    due = _due(evaluations.every, step, steps, took)
    if left is None or not due:
        return left
    each = _each(list(took.values()), rows, left.likely / max(1, steps - step), evaluations.rows)
    return Seconds(**{name: round(getattr(left, name) + due * getattr(each, name), 1) for name in Seconds.model_fields})


def _without(rows: Sequence[Json], took: Mapping[int, float]) -> list[tuple[int, float]]:
    """Return (step, time) of rows as if nothing had been evaluated between them."""
    seen, spent = [], 0.0
    for row in rows:
        seen.append((row["step"], row["time"] - spent))
        spent += took.get(row["step"], 0.0)
    return seen


def _due(every: int | None, step: int, steps: int, took: Mapping[int, float]) -> int:
    """Count the evaluations that are still to come, that of `step` too where it is under way."""
    if not every or step > steps:
        return 0
    ahead = steps // every - step // every + (steps % every != 0) * (step < steps)
    return ahead + (step > 0 and (step % every == 0 or step == steps) and step not in took)


def _each(took: Sequence[float], rows: Sequence[Json], step_s: float, asked: int) -> Seconds:
    """Return the seconds of an evaluation: as others of the run took; before the first, by the pace of steps, half to twice as much."""
    if took:
        return Seconds(low=min(took), likely=statistics.median(took), high=max(took))
    samples = [len(row["samples"]) for row in rows if isinstance(row.get("samples"), list)]
    likely = FORWARD * step_s * asked / max(1.0, statistics.fmean(samples)) if samples else 0.0
    return Seconds(low=likely / 2, likely=likely, high=2 * likely)
