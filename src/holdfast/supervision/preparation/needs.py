"""What a config asks for that cannot be had here, said before anything is tokenised; and what it will not be good for. Starts nothing."""

from __future__ import annotations

import importlib.util

from holdfast.base.errors import BLOCKED, USAGE, Stop
from holdfast.base.units import listed
from holdfast.base.versions import install
from holdfast.base_model.folder import ModelFacts
from holdfast.base_model.packed import packed_as
from holdfast.config.choices.optimizers import KEYS
from holdfast.config.config import Config
from holdfast.config.objectives import OBJECTIVES
from holdfast.config.train import Preference, Train
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


def refuse_unread_preferences(config: Config) -> None:
    """Raise Stop(2) where a key of `preference` is given that the objective's loss does not read. Runs that began with one go on."""
    kind, wanted, usual = config.train.objective_kind, config.preference, Preference()
    given = [name for name in Preference.model_fields if getattr(wanted, name) != getattr(usual, name)]
    for name in given:
        if name not in kind.keys:
            of = ", ".join(one.name for one in OBJECTIVES.values() if name in one.keys)
            message = f"preference.{name} is read with train.objective {of}; this is {kind.name}, and it would change nothing"
            raise Stop(USAGE, message, f"leave preference.{name} out, or set train.objective")
    if "loss" in given and "label_smoothing" in given:
        message = f"preference.label_smoothing is read with preference.loss sigmoid; this is {wanted.loss}, and it would change nothing"
        raise Stop(USAGE, message, "leave one of them out")


def refuse_no_held_out(config: Config, rows: int) -> None:
    """Raise Stop(1) where evaluations on the way are asked for and there are no held-out `rows`."""
    if config.evaluate.every and not rows:
        message = f"evaluate.every = {config.evaluate.every}, but no row is held out to evaluate on"
        raise Stop(BLOCKED, message, "set data.held_out or data.held_out_files, or leave evaluate.every out")


def unread_by_the_optimizer(config: Config) -> list[str]:
    """Say which numbers are given that train.optimizer has no use for."""
    kind = config.train.optimizer_kind
    usual = {name: Train.model_fields[name].default for name in KEYS}
    unread = [f"train.{name}" for name in KEYS if name not in kind.keys and getattr(config.train, name) != usual[name]]
    return [f"train.optimizer {kind.name} does not read {listed(unread)}: what is given there changes nothing"] if unread else []


def tell_what_learns(config: Config, model: ModelFacts, plan: Plan, audience: Audience) -> None:
    """Say which parts of the model learn, and who will not be able to serve what is about to be trained."""
    audience.say(what_learns(plan, config, model))
    for line in [*limits(config, model), *unread_by_the_optimizer(config)]:
        audience.say(f"note: {line}")
