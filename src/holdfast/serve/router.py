"""Which expert answers a prompt, told from its tokens alone: a linear classifier over hashed n-grams, with "none of them". Pure numpy."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load, save

NONE = -1  # no expert: the adapter for all answers
_BITS, _LONGEST = 14, 3  # of a hash, and tokens of an n-gram
_MIXER = np.uint64(0x9E3779B97F4A7C15)
_PENALTY, _ROUNDS = 1e-3, 400  # of squared weights; of accelerated gradient descent
_STEP = 2.0  # features have length 1, so the curvature is at most 1/4 of weights and as much of the intercept

Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Router:
    """weights: float32 [experts, hashes]; intercepts: float32 [experts]; rarity: float32 [hashes], what a feature counts;
    threshold: the score from which an expert is chosen."""

    weights: npt.NDArray[np.float32]
    intercepts: npt.NDArray[np.float32]
    rarity: npt.NDArray[np.float32]
    threshold: float

    def scores(self, ids: Sequence[int]) -> Floats:
        """Return the score of each expert for a prompt's tokens, between 0 and 1, [experts]."""
        at = features(ids)
        counts = self.rarity[at].astype(np.float64)
        counts /= max(float(np.sqrt(counts @ counts)), 1e-12)
        return _logistic((self.weights[:, at] * counts).sum(1) + self.intercepts)

    def choose(self, ids: Sequence[int]) -> int:
        """Return the number of the expert that answers a prompt, or NONE."""
        return _chosen(self.scores(ids), self.threshold)

    def to_bytes(self) -> bytes:
        tensors = {"weights": self.weights, "intercepts": self.intercepts, "rarity": self.rarity}
        return save(tensors | {"threshold": np.array([self.threshold])})


def router_of(data: bytes) -> Router:
    """Return the router that `to_bytes` wrote."""
    found = load(data)
    return Router(found["weights"], found["intercepts"], found["rarity"], float(found["threshold"][0]))


def features(ids: Sequence[int]) -> Ints:
    """Return the hashes of a prompt's n-grams, each once, in order."""
    tokens = np.asarray(ids, np.int64).astype(np.uint64) + np.uint64(1)
    gram, found = tokens, [tokens]
    for size in range(2, _LONGEST + 1):
        gram = gram[:-1] * _MIXER + tokens[size - 1 :]
        found.append(gram)
    mixed = np.concatenate(found) * _MIXER
    mixed ^= mixed >> np.uint64(29)
    return np.unique((mixed * _MIXER) >> np.uint64(64 - _BITS)).astype(np.int64)


def fit(prompts: Sequence[Sequence[int]], experts: Sequence[int], count: int) -> Router:
    """Fit a router of `count` experts to prompts and whose each is (NONE: nobody's); the same input gives the same bits.

    Each expert has a logistic regression of its own prompts against all others, either half of the weight. Sums are in the order of rows,
    so they do not depend on the number of threads. Threshold 0.5.
    """
    at = [features(ids) for ids in prompts]
    row, column = np.repeat(np.arange(len(at)), [len(one) for one in at]), np.concatenate(at)
    rarity = np.log((1 + len(at)) / (1 + np.bincount(column, minlength=1 << _BITS))).astype(np.float32)
    value = rarity[column].astype(np.float64)
    value /= np.sqrt(np.maximum(np.bincount(row, value * value, len(at)), 1e-12))[row]
    truth = np.asarray(experts)
    found = [_fit_one(row, column, value, truth == number) for number in range(count)]
    weights = np.stack([one for one, _ in found]).astype(np.float32)
    return Router(weights, np.array([one for _, one in found], np.float32), rarity, 0.5)


def _fit_one(row: Ints, column: Ints, value: Floats, theirs: npt.NDArray[np.bool_]) -> tuple[Floats, float]:
    """Return (weights [hashes], intercept) by Nesterov's descent from zero."""
    wanted = theirs.astype(np.float64)
    mass = np.where(theirs, 0.5 / max(int(theirs.sum()), 1), 0.5 / max(int((~theirs).sum()), 1))
    weights, intercept = np.zeros(1 << _BITS), 0.0
    ahead, ahead_intercept = weights, intercept
    for number in range(_ROUNDS):
        score = _logistic(np.bincount(row, value * ahead[column], len(wanted)) + ahead_intercept)
        error = mass * (score - wanted)
        new = ahead - _STEP * (np.bincount(column, value * error[row], 1 << _BITS) + _PENALTY * ahead)
        new_intercept = ahead_intercept - _STEP * float(error.sum())
        push = number / (number + 3)
        ahead, ahead_intercept = new + push * (new - weights), new_intercept + push * (new_intercept - intercept)
        weights, intercept = new, new_intercept
    return weights, intercept


def threshold_of(scores: Floats, truth: Sequence[int]) -> float:
    """Return the threshold with the most right choices. scores: [prompts, experts]; truth: whose each is, or NONE.

    Of several that are as good, the middle of the gap in the scores that is nearest to 0.5.
    """
    edges = [0.0, *np.unique(scores.max(1)).tolist(), 1.0]
    tried = sorted(((low + high) / 2 for low, high in itertools.pairwise(edges)), key=lambda one: (abs(one - 0.5), one))
    best: float = max(tried, key=lambda one: sum(_chosen(each, one) == right for each, right in zip(scores, truth, strict=True)))
    return best


def _chosen(scores: Floats, threshold: float) -> int:
    best = int(scores.argmax())
    return best if scores[best] >= threshold else NONE


def _logistic(value: Floats) -> Floats:
    return 1.0 / (1.0 + np.exp(-np.clip(value, -60, 60)))
