"""Which rows a model finds unlike the others: by how far the mean loss of each lies from that of most. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from holdfast.base.files import Json
from holdfast.book.kinds.data_check import DataCheck, RowView

FEWEST = 20  # rows whose losses tell what is usual
_NORMAL = 1.4826  # of a normal distribution, the standard deviation over the median of absolute deviations
_NEAREST = 2.0  # deviations; no check is about nearer ones
_SHOWN = 5  # rows of a kind


class Odd(NamedTuple):
    """A row that a check notes: its file, line, learned tokens, mean loss and deviation, and what is said of it."""

    reason: str
    file: str
    line: int
    tokens: int
    loss: float
    deviation: float
    detail: str


@dataclass(frozen=True)
class SecondLook:
    """`median` and `spread` of the mean losses in nats, spread as a standard deviation; `worst`: some rows of each reason."""

    rows: int
    median: float | None = None
    spread: float | None = None
    counts: dict[str, int] = field(default_factory=dict)
    worst: tuple[Odd, ...] = ()

    def as_json(self) -> Json:
        return vars(self) | {"worst": [odd._asdict() for odd in self.worst]}


def look_at(found: npt.NDArray[Any], files: Sequence[str], cards: Sequence[DataCheck]) -> SecondLook:
    """Report rows of odd loss; `found`: [rows, 4], number of the file, line, learned tokens, mean loss. Few rows give no finding."""
    losses = found[:, 3]
    if len(losses) < FEWEST:
        return SecondLook(len(losses))
    median = float(np.median(losses))
    spread = _NORMAL * float(np.median(np.abs(losses - median)))
    deviations = (losses - median) / (spread or np.inf)
    odd: list[Odd] = []
    for at in np.argsort(-np.abs(deviations), kind="stable").tolist():
        view = RowView("", "", "", loss=float(losses[at]), deviation=float(deviations[at]))
        said = [(card.reason, detail) for card in cards if (detail := card.look(view))]
        if not said and abs(deviations[at]) < _NEAREST:
            break  # the others lie nearer to the median still
        file, line, tokens = (int(number) for number in found[at, :3])
        odd += [Odd(reason, files[file], line, tokens, float(losses[at]), float(deviations[at]), detail) for reason, detail in said]
    counts = Counter(one.reason for one in odd)
    worst = tuple(one for reason in counts for one in [each for each in odd if each.reason == reason][:_SHOWN])
    return SecondLook(len(losses), median, spread, dict(counts), worst)
