"""The objectives of training, one record each: rows, what they compare, keys, words. Reads no file, needs no torch.

The loss itself is a class in trainer/tasks/text/objective.py, in the table LOSSES under the same name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

ObjectiveName = Literal["sft", "dpo", "orpo", "simpo", "kto", "reward"]
Wanted = Literal["answers", "pairs", "marks"]


@dataclass(frozen=True)
class ObjectiveKind:
    """What holdfast knows of one objective.

    rows: answers that are all good, pairs of a better and a worse one, or marked ones. beta: where preference.beta is not given.
    keys: of `preference` that its loss reads.
    reference: needs log-probabilities of the model before training; drift: and how far the model has gone from it elsewhere.
    scores: trains a scalar head, and looks at its numbers. unit: what a mean loss is per. about: for the docs.
    lr: the peak rate that is usual for an adapter, a tenth of it for all weights; None: as the size of the model has it.
    """

    name: ObjectiveName
    rows: Wanted
    about: str
    keys: tuple[str, ...] = ()
    beta: float = 0.1
    reference: bool = False
    drift: bool = False
    scores: bool = False
    unit: str = "per pair"
    lr: float | None = None


_ALL = (
    ObjectiveKind(
        "sft",
        "answers",
        "cross-entropy; `data.train_on`: every answer (`assistant`), the `last` one, `all` tokens",
        unit="nats per label token",
    ),
    ObjectiveKind(
        "dpo",
        "pairs",
        "`preference.loss`: `sigmoid`, `ipo`, `hinge`; `label_smoothing`, `length_normalised`, `sft_weight`",
        keys=("beta", "loss", "label_smoothing", "length_normalised", "sft_weight"),
        reference=True,
        lr=5e-6,
    ),
    ObjectiveKind("orpo", "pairs", "the answer's own loss, and odds", keys=("beta",), lr=2e-5),
    ObjectiveKind(
        "simpo",
        "pairs",
        "ahead by `preference.margin`; `label_smoothing`, `sft_weight`",
        keys=("beta", "label_smoothing", "sft_weight", "margin"),
        beta=2.0,
        lr=5e-6,
    ),
    ObjectiveKind(
        "kto",
        "marks",
        "`desirable_weight`, `undesirable_weight`",
        keys=("beta", "desirable_weight", "undesirable_weight"),
        reference=True,
        drift=True,
        unit="per answer",
        lr=5e-6,
    ),
    ObjectiveKind(
        "reward",
        "pairs",
        "a scalar head gives each answer a number; the better one's is to be larger",
        keys=("label_smoothing",),
        beta=1.0,
        scores=True,
    ),
)
OBJECTIVES: Mapping[str, ObjectiveKind] = {kind.name: kind for kind in _ALL}


def objectives_of(rows: Wanted, reference: bool | None = None) -> list[str]:
    """List the objectives that learn from such rows, but for those of a scalar head; reference: only with or only without one."""
    found = [kind for kind in _ALL if kind.rows == rows and not kind.scores]
    return [kind.name for kind in found if reference is None or kind.reference is reference]


def either(names: list[str]) -> str:
    """Join names as a choice in a sentence."""
    return " or ".join((", ".join(names[:-1]), names[-1])) if len(names) > 1 else names[0]
