"""Begin a run with parts of its steps computed at the same time, where that is faster. Touches no torch."""

from __future__ import annotations

import numpy as np

from holdfast.base.tasks import kind_of
from holdfast.base_model.folder import read_model
from holdfast.config.config import Config
from holdfast.data.token_set.token_set import load_tokens, split, step_table
from holdfast.planning.side_by_side import StepSize, more_logits, side_by_side
from holdfast.report.audience import Audience
from holdfast.run.folder import RunFolder
from holdfast.run.plan import RunPlan
from holdfast.run.timeline import Entry, add_entry, settings_in


def choose_parts(run: RunFolder, config: Config, plan: RunPlan, audience: Audience) -> int:
    """Put on the timeline of a new run of one rank that parts of its steps are computed at the same time, where they are.

    Return by how many bytes they exceed the plan.
    """
    settings = settings_in(run.timeline_file)
    if not kind_of(config).base_model or (settings.device != "cpu" and not isinstance(config.train.parts_at_once, int)):
        return 0
    tokens = load_tokens(run.data_file)
    training, lengths = split(tokens, config.data, config.train.seed)[0], np.diff(tokens.starts)
    _, largest = step_table(tokens, training, config.data, config.train).largest_step(lengths, settings.samples)
    mean = float(lengths[training].mean()) * config.train.effective_batch
    size = StepSize(int(lengths[training].max()), largest, mean, plan.params.total)
    changes, reason = side_by_side(config, settings, size)
    if changes:
        add_entry(run.timeline_file, Entry(1, changes, reason))
        run.event("setting_changed", what=reason)
    elif reason:
        run.event("parts_one_by_one", says=reason)
        audience.say(f"holdfast: {reason}")
    vocabulary = read_model(config.model).number("vocab_size", default=32000)
    return more_logits(config, settings, int(changes.get("at_once", 1)), largest, vocabulary)
