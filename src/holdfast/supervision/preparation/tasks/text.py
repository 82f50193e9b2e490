"""What is done for a run on texts before its first start: read, judge and tokenise the rows, plan."""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np

from holdfast.base.files import Json
from holdfast.base_model.folder import read_model
from holdfast.config.config import Config
from holdfast.data.token_set.token_set import step_table
from holdfast.machine.probes import kept_probes
from holdfast.planning.memory.frozen_form import as_it_comes
from holdfast.planning.past_runs import with_duration
from holdfast.planning.workload import checked_tokens
from holdfast.report.audience import Audience
from holdfast.run.base_model import identity, pinned
from holdfast.run.folder import RunFolder
from holdfast.run.plan import RowCounts, RunPlan
from holdfast.run.sampling.step_table import run_length
from holdfast.supervision.preparation.foresee import foresee
from holdfast.supervision.preparation.needs import refuse_unread_preferences, refuse_what_is_missing, tell_what_learns
from holdfast.supervision.preparation.rows import check_data, divide
from holdfast.supervision.preparation.run_plan import plan_rows
from holdfast.supervision.preparation.start import take_start
from holdfast.supervision.preparation.types import NewRun, Preparation


def plan_text(run: RunFolder, config: Config, asked: Future[Json], audience: Audience) -> NewRun:
    """Plan a new run, whose tokens then lie in its folder and whose config names the commit of its model."""
    refuse_unread_preferences(config)
    model = read_model(config.model)
    held = as_it_comes(config, model)
    refuse_what_is_missing(held, model)
    config = config.model_copy(update={"model": pinned(config.model, model)})
    start = take_start(run, config, model, audience)
    tokens, data = check_data(run, config, model, audience)
    machine = asked.result()
    lengths = np.diff(tokens.starts)
    training, held_out, per_epoch = divide(run, config, tokens)
    table = step_table(tokens, training, config.data, config.train)
    _, largest = table.largest_step(lengths)
    spread = {"max": int(lengths.max()), "mean": float(lengths[training].mean()), "rows": len(training), "step": largest}
    steps, samples = run_length(per_epoch, config.train.effective_batch, config.train.epochs, config.train.steps)
    planned = plan_rows(held, model, machine, spread, audience)
    drawn, judged = (float(lengths[rows].mean()) if len(rows) else 0.0 for rows in (table.order(0), held_out))  # any epoch has the same mix
    checked = checked_tokens(config, steps, len(held_out), judged)
    speed = machine | {"probes": kept_probes(machine, run.path)}
    plan = RunPlan(
        **dict(with_duration(config, speed, planned, samples * drawn, checked, model.text)),
        steps=steps,
        samples=samples,
        rows=RowCounts(train=len(training), held_out=len(held_out), per_epoch=per_epoch),
        base=identity(model),
        **data,
        start_adapter=start,
    )
    tell_what_learns(config, model, plan, audience)
    return NewRun(config, held, machine, plan)


def _check_again(run: RunFolder, config: Config, audience: Audience) -> str:
    digest: str = check_data(run, config, read_model(config.model), audience, run.plan().data_sha256)[1]["data_sha256"]
    return digest


def _rows_asked(config: Config, held_out: int) -> int:
    """Return the number of rows to ask base and tuned model for losses and answers; a scalar head has no base to ask."""
    return held_out if config.train.objective_kind.scores else 2 * (held_out + min(held_out, config.evaluate.generate))


PREPARATION = Preparation(plan_text, _check_again, foresee, _rows_asked)
