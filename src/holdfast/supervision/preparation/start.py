"""Begin a run from an existing adapter: settle the config by it, check it against the base model, keep a copy in the run folder."""

from __future__ import annotations

from pathlib import Path

from holdfast.base.files import Json, write_bytes
from holdfast.base.units import listed
from holdfast.base_model.folder import ModelFacts, base_of_adapter, hub_name
from holdfast.config.config import Config
from holdfast.data.token_set.learned_rows import run_of
from holdfast.report.audience import Audience
from holdfast.run.adapter_folder import IS_REFERENCE, StartAdapter, check_start, read_start, settled, short_targets
from holdfast.run.base_model import follow_pinned, identity
from holdfast.run.folder import RunFolder
from holdfast.run.plan import read_plan


def with_start(run: RunFolder, config: Config) -> Config:
    """Return `config` with r, alpha and targets of its starting adapter; of an existing run, those it began with. Raises Stop.

    A new run whose model names no revision takes the commit that the adapter was trained on.
    """
    if config.adapter.start is None:
        return config
    begun = run.plan().start_adapter if run.config_file.exists() else None
    if begun:
        return config.model_copy(update={"adapter": settled(config.adapter, begun)})
    start = read_start(Path(config.adapter.start))
    model = config.model if hub_name(config.model)[1] else follow_pinned(config.model, base_of_adapter(start.config))
    return config.model_copy(update={"adapter": settled(config.adapter, start.facts()), "model": model})


def take_start(run: RunFolder, config: Config, model: ModelFacts, audience: Audience) -> Json | None:
    """Check the starting adapter and copy it into the run folder, which then needs it no more; what the plan tells of it. Raises Stop."""
    if config.adapter.start is None:
        return None
    start = read_start(Path(config.adapter.start))
    check_start(start, config.adapter, model)
    write_bytes(run.start_adapter, start.file.read_bytes())
    facts = start.facts() | ({IS_REFERENCE: True} if config.train.objective_kind.reference else {})
    adapter, targets = config.adapter, short_targets(start.targets)
    names = targets if isinstance(targets, str) else ", ".join(targets)
    told = [f"type = {adapter.type}"] if adapter.type != type(adapter)().type else []
    told += [f"r = {adapter.r}", f"alpha = {adapter.alpha:g}"] if "r" in facts else []
    told += [f"targets = {names}"] if names else []
    base = base_of_adapter(start.config)
    if facts.get(IS_REFERENCE):
        told.append(f"and it is the reference of train.objective {config.train.objective}")
    audience.say(f"start: {facts['path']} (sha256 {facts['sha256'][:16]}), so {', '.join(told)}; trained on {base or 'an unknown base'}")
    if other := _other_weights(start, config, model):
        audience.tell(f"the model is not the one that {start.folder} was trained on: {other}; the adapter changes other weights here")
        run.event("start_on_another_base", says=other)
    return facts


def _other_weights(start: StartAdapter, config: Config, model: ModelFacts) -> str:
    """Return how the base model that an adapter was trained on differs from `model`; "" where it does not, or cannot be known."""
    before, plan = run_of(start.folder), None
    if before and (plan := read_plan(before.plan_file)) and plan.base:
        here, there = identity(model).files, plan.base.files
        differing = sorted(name for name in here | there if name.endswith(".safetensors") and here.get(name) != there.get(name))
        return f"other bytes in {listed(differing)}" if differing else ""
    (name, revision), (own, commit) = hub_name(config.model), hub_name(base_of_adapter(start.config))
    return f"commit {commit}, and {revision} here" if name == own and commit and revision and commit != revision else ""
