"""What is done for a run before its first start, by its kind of task; what happens from then on is trainer/protocol/task.py's."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from holdfast.base.files import Json
from holdfast.base.tasks import kind_of, look_up
from holdfast.config.config import Config
from holdfast.report.audience import Audience
from holdfast.run.folder import RunFolder
from holdfast.run.plan import Plan, RunPlan
from holdfast.run.types import Finding


@dataclass(frozen=True)
class NewRun:
    """A new run. config: as its folder keeps it; settled: as its first settings follow from it; machine: the facts it was planned for."""

    config: Config
    settled: Config
    machine: Json
    plan: RunPlan


@dataclass(frozen=True)
class Foreseen:
    """`plan`: None where none can be made. The rows are not known yet, so it is of the largest the config allows.

    config: as the model's files hold their weights.
    """

    plan: Plan | None
    findings: list[Finding]
    config: Config


@dataclass(frozen=True)
class Preparation:
    """How a task prepares a run.

    plan_run: check the rows, put them into the run folder, plan. It is given the machine while that is still being read.
    check_rows: make the run folder's copy of the rows again; its SHA-256.
    foresee: what can be said before anything is prepared; writes nothing.
    rows_asked: how many rows its last evaluation asks for, of all models together, given how many are held out.
    The first three raise Stop.
    """

    plan_run: Callable[[RunFolder, Config, Future[Json], Audience], NewRun]
    check_rows: Callable[[RunFolder, Config, Audience], str]
    foresee: Callable[[Config, Json], Foreseen]
    rows_asked: Callable[[Config, int], int]


def preparation_of(config: Config) -> Preparation:
    """Return how the task that a config asks for is prepared."""
    found: Preparation = look_up(kind_of(config).preparation)
    return found
