"""Losses over one batch of sequences, of answers held against each other. Each is a weighted sum that can be differentiated.

The log-probability of a sequence is that of its answer's tokens. `reference`: the same under the model before training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast.config.config import Config
from holdfast.config.train import Preference


@dataclass(frozen=True)
class SequenceScores:
    """Sequences of a batch: logps and reference (log-probabilities, fp32), counts (of their tokens), good: all [sequences]."""

    logps: Tensor
    reference: Tensor | None
    counts: Tensor
    good: Tensor
    weights: Tensor | None = None  # of the samples, how much each counts; None: all alike
    drift: Tensor | None = None  # how far the model has gone from the reference on answers to other prompts, a scalar


class Objective(Protocol):
    """A loss. measures: names of what is summed over samples beside it, as they stand in a step's row."""

    measures: tuple[str, ...]

    def __init__(self, preference: Preference, beta: float) -> None: ...

    def of(self, scored: SequenceScores) -> tuple[Tensor, Tensor]:
        """Return (sum of the samples' losses, what was measured: [measures])."""
        ...


class PairObjective:
    """What pair objectives have in common: sequences alternate, the better one first."""

    measures: tuple[str, ...] = ("pair_accuracy", "margin")

    def __init__(self, preference: Preference, beta: float) -> None:
        self.preference, self.beta = preference, beta

    def of(self, scored: SequenceScores) -> tuple[Tensor, Tensor]:
        (better, worse), (long, short) = (values.view(-1, 2).unbind(1) for values in (scored.logps, scored.counts))
        reference = None if scored.reference is None else scored.reference.view(-1, 2)
        losses, margins = self.losses(better, worse, long, short, reference)
        margins = margins.detach()
        return _sum(losses, scored), torch.stack([(margins > 0).sum().double(), margins.double().sum()])

    def losses(self, better: Tensor, worse: Tensor, long: Tensor, short: Tensor, reference: Tensor | None) -> tuple[Tensor, Tensor]:
        """Compute (loss, margin) of each pair. long, short: tokens of the better and of the worse answer."""
        raise NotImplementedError

    def smoothed(self, margins: Tensor) -> Tensor:
        """Compute -log sigmoid of margins, where a share of the pairs may be the wrong way round."""
        share = self.preference.label_smoothing
        return -F.logsigmoid(margins) * (1 - share) - (F.logsigmoid(-margins) * share if share else 0.0)


class Dpo(PairObjective):
    """Rafailov et al. 2023 (arXiv 2305.18290); ipo, per token: Azar et al. 2023 (2310.12036); hinge: Zhao et al. 2023 (2305.10425)."""

    def losses(self, better: Tensor, worse: Tensor, long: Tensor, short: Tensor, reference: Tensor | None) -> tuple[Tensor, Tensor]:
        assert reference is not None
        wanted = self.preference
        ahead, behind = better - reference[:, 0], worse - reference[:, 1]
        if wanted.length_normalised or wanted.loss == "ipo":
            ahead, behind = ahead / long, behind / short
        margins = self.beta * (ahead - behind)
        if wanted.loss == "ipo":
            losses = (ahead - behind - 1 / (2 * self.beta)) ** 2
        else:
            losses = torch.relu(1 - margins) if wanted.loss == "hinge" else self.smoothed(margins)
        return losses - wanted.sft_weight * better / long if wanted.sft_weight else losses, margins


class Orpo(PairObjective):
    """Hong et al. 2024 (arXiv 2403.07691): the answer's own loss, and the odds of the better answer against those of the worse one."""

    def losses(self, better: Tensor, worse: Tensor, long: Tensor, short: Tensor, reference: Tensor | None) -> tuple[Tensor, Tensor]:
        one, two = better / long, worse / short
        odds = (one - two) - (_log1mexp(one) - _log1mexp(two))
        return -one - self.beta * F.logsigmoid(odds), self.beta * (one - two)


class SimPo(PairObjective):
    """Meng et al. 2024 (arXiv 2405.14734): log-probabilities per token, ahead by a margin; no reference."""

    def losses(self, better: Tensor, worse: Tensor, long: Tensor, short: Tensor, reference: Tensor | None) -> tuple[Tensor, Tensor]:
        wanted = self.preference
        margins = self.beta * (better / long - worse / short)
        losses = self.smoothed(margins - wanted.margin)
        return losses - wanted.sft_weight * better / long if wanted.sft_weight else losses, margins


class Reward(PairObjective):
    """Bradley and Terry's model of pairs (Ouyang et al. 2022, arXiv 2203.02155): the better answer's score above the worse one's."""

    def losses(self, better: Tensor, worse: Tensor, long: Tensor, short: Tensor, reference: Tensor | None) -> tuple[Tensor, Tensor]:
        margins = better - worse
        return self.smoothed(margins), margins


class Kto:
    """Ethayarajh et al. 2024 (arXiv 2402.01306): good answers above, bad ones below what the model has drifted elsewhere."""

    measures: tuple[str, ...] = ("pair_accuracy", "margin")

    def __init__(self, preference: Preference, beta: float) -> None:
        self.preference, self.beta = preference, beta

    def of(self, scored: SequenceScores) -> tuple[Tensor, Tensor]:
        assert scored.reference is not None and scored.drift is not None
        sign = torch.where(scored.good, 1.0, -1.0)
        weight = torch.where(scored.good, self.preference.desirable_weight, self.preference.undesirable_weight)
        ahead = scored.logps - scored.reference
        losses = weight * (1 - torch.sigmoid(sign * self.beta * (ahead - scored.drift)))
        margins = (sign * self.beta * ahead).detach()
        return _sum(losses, scored), torch.stack([(margins > 0).sum().double(), margins.double().sum()])


def _sum(losses: Tensor, scored: SequenceScores) -> Tensor:
    return (losses if scored.weights is None else losses * scored.weights).sum()


def _log1mexp(x: Tensor) -> Tensor:
    """Compute log(1 - e^x) for x < 0."""
    return torch.log1p(-torch.exp(x.clamp_max(-1e-7)))


LOSSES: dict[str, type[Objective]] = {"dpo": Dpo, "orpo": Orpo, "simpo": SimPo, "kto": Kto, "reward": Reward}  # by train.objective


def objective_of(config: Config) -> Objective | None:
    """Build the loss that `train.objective` names; None for plain answers, whose loss needs no sequence as a whole."""
    kind, preference = config.train.objective_kind, config.preference
    return None if kind.rows == "answers" else LOSSES[kind.name](preference, preference.beta or kind.beta)
