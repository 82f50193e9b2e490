"""Plan a run whose rows are known: by the closed form where there is room to spare, by its traced step where memory is scarce."""

from __future__ import annotations

from holdfast.base.errors import Stop
from holdfast.base.files import Json
from holdfast.base_model.folder import ModelFacts
from holdfast.book.knowledge import has_fused_attention
from holdfast.config.config import Config
from holdfast.planning.past_runs import correct_from_history
from holdfast.planning.plan import about_rows, make_plan, usable
from holdfast.planning.planning import RowLengths, planner
from holdfast.report.audience import Audience
from holdfast.run.plan import Plan

# Of what may be used: where the closed form needs less, nothing that it is off by changes a choice (benchmarks/results/plan.md).
_ROOMY = 0.6


def plan_rows(config: Config, model: ModelFacts, machine: Json, lengths: Json, audience: Audience) -> Plan:
    """Plan a run, corrected by what it took here before. lengths as make_plan takes them. A step that cannot be traced is told of."""
    plan = make_plan(config, model, machine, lengths, has_fused_attention(machine))
    if not _scarce(plan, config):
        return correct_from_history(config, machine, plan)
    audience.say("memory is scarce for this run: its step is traced before it begins, so that what is chosen fits")
    try:
        with planner(config, machine, RowLengths(int(lengths["max"]), int(lengths["step"])), model) as work:
            traced = work.chosen().plan
    except Stop as stop:
        told = f"by the closed form, because its step could not be traced: {stop.message}"
        return correct_from_history(config, machine, plan.model_copy(update={"reasons": (*plan.reasons, told)}))
    return correct_from_history(
        config, machine, traced.model_copy(update={"reasons": (_chosen(traced), *traced.reasons, about_rows(lengths))})
    )


def _scarce(plan: Plan, config: Config) -> bool:
    """True if the closed form's error could change the choice; where both numbers are given, there is none."""
    given = config.train.micro_batch_tokens is not None and config.train.checkpointed_layers is not None
    return plan.capacity_bytes is not None and not given and plan.peak_bytes > _ROOMY * usable(config.train, plan.capacity_bytes)


def _chosen(plan: Plan) -> str:
    needed, there = plan.peak_bytes / 2**30, (plan.capacity_bytes or 0) / 2**30
    return f"micro_batch_tokens = {plan.micro_batch_tokens}, {needed:.2f} GiB needed of {there:.2f} GiB, as its step was traced"
