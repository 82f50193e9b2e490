"""Which optimizer a config asks for: the one place where that is chosen."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from holdfast.config.train import Train
from holdfast.trainer.optim.eight_bit import AdamW8Bit
from holdfast.trainer.optim.of_torch import Adafactor, Muon
from holdfast.trainer.optim.optimizer import AdamW, FlatOptimizer
from holdfast.trainer.optim.schedule_free import ScheduleFree
from holdfast.trainer.optim.simple import Lion, Sgd

OPTIMIZERS: dict[str, type[FlatOptimizer]] = {  # by train.optimizer
    "adamw": AdamW,
    "adamw8bit": AdamW8Bit,
    "paged": AdamW8Bit,
    "schedule_free": ScheduleFree,
    "adafactor": Adafactor,
    "lion": Lion,
    "muon": Muon,
    "sgd": Sgd,
}


def optimizer_of(parameters: Mapping[str, Tensor], train: Train, rates: Mapping[str, float] | None = None) -> FlatOptimizer:
    """Build the optimizer that `train` names over these parameters, with all its state. rates: learning-rate factors by name.

    Raises Refusal where its package is not there.
    """
    return OPTIMIZERS[train.optimizer](parameters, train, rates)
