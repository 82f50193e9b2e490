"""Which way of training a config asks for: the one place where that is chosen."""

from __future__ import annotations

import torch
from torch import nn

from holdfast.base_model.folder import read_model
from holdfast.config.config import Config
from holdfast.config.settings import Settings
from holdfast.trainer.model.trained.adapters import PeftAdapter
from holdfast.trainer.model.trained.strategy import TrainedWeights
from holdfast.trainer.model.trained.weights import OwnWeights


def trained_on(base: nn.Module, config: Config, settings: Settings, device: torch.device, cut: bool = False) -> TrainedWeights:
    """Attach what `adapter.type` names to the frozen base model. Raises Refusal where it does not fit.

    device: of an adapter, also where the base is elsewhere. cut: what is trained will be, between ranks.
    """
    if config.adapter.kind.own_weights:
        return OwnWeights(base, config, read_model(config.model), mixed=settings.dtype != "fp32", cut=cut)
    return PeftAdapter(base, config, settings.steps, device, once=not settings.all_learn, exact=settings.exact_start)
