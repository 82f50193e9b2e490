"""Begin a run from an existing adapter: settle the config by it, check it against the base model, keep a copy in the run folder."""

from __future__ import annotations

from pathlib import Path

from holdfast.base.files import Json, write_bytes
from holdfast.base_model.folder import ModelFacts
from holdfast.config.config import Config
from holdfast.run.adapter_folder import check_start, read_start, settled, short_targets
from holdfast.run.folder import RunFolder
from holdfast.terminal.run_view import Terminal


def with_start(run: RunFolder, config: Config) -> Config:
    """Return `config` with r, alpha and targets of its starting adapter; of an existing run, those it began with. Raises Stop."""
    if config.adapter.start is None:
        return config
    begun = run.plan().start_adapter if run.config_file.exists() else None
    facts: Json = begun or read_start(Path(config.adapter.start)).facts()
    return config.model_copy(update={"adapter": settled(config.adapter, facts)})


def take_start(run: RunFolder, config: Config, model: ModelFacts, terminal: Terminal) -> Json | None:
    """Check the starting adapter and copy it into the run folder, which then needs it no more; what the plan tells of it. Raises Stop."""
    if config.adapter.start is None:
        return None
    start = read_start(Path(config.adapter.start))
    check_start(start, config.adapter, model)
    write_bytes(run.start_adapter, start.file.read_bytes())
    facts = start.facts()
    adapter, targets = config.adapter, short_targets(start.targets)
    names = targets if isinstance(targets, str) else ", ".join(targets)
    told = [f"type = {adapter.type}"] if adapter.type != type(adapter)().type else []
    told += [f"r = {adapter.r}", f"alpha = {adapter.alpha:g}"] if "r" in facts else []
    told += [f"targets = {names}"] if names else []
    terminal.say(f"start: {facts['path']} (sha256 {facts['sha256'][:16]}), so {', '.join(told)}")
    return facts
