"""The optimizers, one record each: what they keep and what they go with. Reads no file, needs no torch.

The update itself is a class, in the table of trainer/optim/choose.py under the same name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

OptimizerName = Literal["adamw", "adamw8bit", "paged", "schedule_free", "adafactor", "lion", "muon", "sgd"]


_OF_ADAMW = ("beta1", "beta2", "epsilon")


@dataclass(frozen=True)
class OptimizerKind:
    """What holdfast knows of one optimizer.

    state_bytes: it keeps for each weight that is trained. moments: each weight's own in fp32, so that they can come and go in stretches and
    be cut between ranks; in blocks of 8 bits by bitsandbytes, with one rate for all; or of a form of its own.
    averages: its result is the mean of all steps, so it has no schedule. rests: an element whose gradient is 0 stays where it is.
    keys: of `train` that are numbers of its own.
    """

    name: OptimizerName
    state_bytes: float
    moments: Literal["own", "blocks", "whole"]
    averages: bool = False
    rests: bool = True
    keys: tuple[str, ...] = _OF_ADAMW


_ALL = (
    OptimizerKind("adamw", 8, "own"),
    OptimizerKind("adamw8bit", 2.04, "blocks"),
    OptimizerKind("paged", 2.04, "blocks"),
    OptimizerKind("schedule_free", 12, "whole", averages=True),  # 4 are the artifact, whose weights are not those the model computes with
    OptimizerKind("adafactor", 0.1, "whole", keys=()),  # of a matrix its rows and columns, which are few
    OptimizerKind("lion", 4, "own", keys=("beta1", "beta2")),
    OptimizerKind("muon", 4, "whole", rests=False),  # whose numbers are AdamW's, for what is no matrix
    OptimizerKind("sgd", 4, "own", keys=("beta1",)),
)
OPTIMIZERS: Mapping[str, OptimizerKind] = {kind.name: kind for kind in _ALL}
KEYS = _OF_ADAMW  # of `train`, of which each optimizer reads some
