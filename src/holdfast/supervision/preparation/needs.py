"""What a config asks for that cannot be had here, said before anything is tokenised; and what it will not be good for. Starts nothing."""

from __future__ import annotations

import importlib.util

from holdfast.base.errors import BLOCKED, Stop
from holdfast.base.versions import install
from holdfast.base_model.folder import ModelFacts
from holdfast.base_model.packed import packed_as
from holdfast.config.config import Config
from holdfast.planning.memory.trained_size import what_learns
from holdfast.planning.serving_limits import limits
from holdfast.report.audience import Audience
from holdfast.run.plan import Plan


def refuse_what_is_missing(config: Config, model: ModelFacts) -> None:
    """Raise Stop(1) where a package is asked for that is not installed."""
    packed = packed_as(model.config)
    asking = [
        *([f"{model.folder}, which comes in {packed.kind},"] if packed else []),
        *(key for key in config.train.wants_bitsandbytes if not packed or not key.startswith("train.frozen")),
    ]
    if asking and importlib.util.find_spec("bitsandbytes") is None:
        verb = "needs" if len(asking) == 1 else "need"
        raise Stop(BLOCKED, f"{' and '.join(asking)} {verb} bitsandbytes, which is not installed", install("quantised"))


def refuse_no_held_out(config: Config, rows: int) -> None:
    """Raise Stop(1) where evaluations on the way are asked for and there are no held-out `rows`."""
    if config.evaluate.every and not rows:
        message = f"evaluate.every = {config.evaluate.every}, but no row is held out to evaluate on"
        raise Stop(BLOCKED, message, "set data.held_out or data.held_out_files, or leave evaluate.every out")


def tell_what_learns(config: Config, model: ModelFacts, plan: Plan, audience: Audience) -> None:
    """Say which parts of the model learn, and who will not be able to serve what is about to be trained."""
    audience.say(what_learns(plan, config, model))
    for line in limits(config, model):
        audience.say(f"note: {line}")
