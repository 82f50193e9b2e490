"""How good predictions are, beside forecasts that need no network. Pure, numpy alone; intervals are base/intervals.py's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.base.files import Json
from holdfast.base.intervals import interval, verdict

Column = npt.NDArray[np.float64]


def row_losses(loss: str, predicted: Column, target: Column, table: Any, weights: Sequence[float] | None = None) -> Column:
    """Compute the loss of each row, as a step learns it. predicted: [rows, outputs], probabilities of classes or numbers as they were
    scaled; weights: of each class, None where they are 1."""
    if loss == "cross-entropy":
        classes = target.astype(int)
        losses: Column = -np.log(np.maximum(predicted[np.arange(len(target)), classes], 1e-300))
        return losses if weights is None else losses * np.array(weights)[classes]
    apart = target[:, None] - predicted
    if loss == "quantile":
        quantiles = np.array(table.quantiles)
        losses = np.maximum(quantiles * apart, (quantiles - 1) * apart)
    elif loss == "huber":
        size, delta = np.abs(apart), table.huber_delta
        losses = np.where(size <= delta, 0.5 * apart**2, delta * (size - 0.5 * delta))
    else:
        losses = apart**2
    means: Column = losses.mean(axis=1)
    return means


def of_numbers(predicted: Column, target: Column) -> Json:
    """Compute mse, rmse, mae and r2 of predictions and targets in the target's own unit."""
    apart = predicted - target
    spread = float(((target - target.mean()) ** 2).mean()) if len(target) else 0.0
    mse = float((apart**2).mean())
    return {"mse": mse, "rmse": math.sqrt(mse), "mae": float(np.abs(apart).mean()), "r2": 1 - mse / spread if spread > 0 else None}


def of_classes(probabilities: Column, target: Column, classes: tuple[str, ...]) -> Json:
    """Compute accuracy, balanced accuracy (mean over the classes that occur), log loss; of two classes the area under the curve."""
    wanted, found = target.astype(int), probabilities.argmax(axis=1)
    right = found == wanted
    of_class = {name: float(right[wanted == at].mean()) for at, name in enumerate(classes) if (wanted == at).any()}
    log_loss = float(-np.log(np.maximum(probabilities[np.arange(len(wanted)), wanted], 1e-300)).mean())
    facts: Json = {"accuracy": float(right.mean()), "balanced_accuracy": float(np.mean([*of_class.values()])), "log_loss": log_loss}
    if len(classes) == 2 and len(of_class) == 2:
        facts["auc"] = _auc(probabilities[:, 1], wanted == 1)
    return facts | ({"recall": of_class} if len(of_class) <= 20 else {})


def _auc(score: Column, positive: npt.NDArray[np.bool_]) -> float:
    """Share of pairs that are in the right order, ties counting half."""
    _, place, counts = np.unique(score, return_inverse=True, return_counts=True)
    rank = (np.cumsum(counts) - (counts - 1) / 2.0)[place]
    many = int(positive.sum())
    return float((rank[positive].sum() - many * (many + 1) / 2) / (many * (len(score) - many)))


def middle_of(predicted: Column, quantiles: list[float]) -> Column:
    """Return the one forecast of each row: the quantile nearest to the median, the mean of two that are as near."""
    means: Column = predicted[:, middle_places(quantiles)].mean(axis=1)
    return means


def middle_places(quantiles: list[float]) -> list[int]:
    """Return where the quantile nearest to the median stands, in whatever order they are, or both that are as near."""
    far = np.abs(np.array(quantiles) - 0.5)
    return [int(at) for at in np.flatnonzero(np.isclose(far, far.min()))]


def of_quantiles(predicted: Column, target: Column, quantiles: list[float]) -> Json:
    """Share of targets at or below each predicted quantile: what it should be is the quantile."""
    return {"coverage": {f"{quantile:g}": float((target <= predicted[:, at]).mean()) for at, quantile in enumerate(quantiles)}}


def one_after_another(series: np.ndarray, horizon: int) -> np.ndarray:
    """Return the places of every `horizon`-th row of each series, so that no trade of one begins before its last has ended.

    series: of each row, [rows], in the order of time.
    """
    return np.sort(np.concatenate([np.flatnonzero(series == one)[::horizon] for one in np.unique(series)]))


def trades(signal: Column, realised: Column, before: Column, horizon: int, cost: float, at_once: int = 1) -> Json:
    """Compute the mean net return of trades that follow each other: by the signal's sign, and by rules that need no network.

    realised: log return within the horizon; before: that of the horizon before, NaN where unknown; cost: share of the price; at_once:
    series that are traded side by side.
    """
    rules = {
        "model": np.sign(signal),
        "always_long": np.ones_like(signal),
        "last_move": np.nan_to_num(np.sign(before)),
        "flat": np.zeros_like(signal),
    }
    net = {name: side * realised - cost * np.abs(side) for name, side in rules.items()}
    told: Json = {}
    for name, side in rules.items():
        taken = side != 0
        told[name] = {
            "trades": int(taken.sum()),
            "hits": float((np.sign(realised[taken]) == side[taken]).mean()) if taken.any() else None,
            "net_return": interval(net[name], at_once),
            "total": float(net[name].sum()),
        }
    naive = max((name for name in rules if name != "model"), key=lambda name: float(net[name].mean()))
    gain = interval(net["model"] - net[naive], at_once)
    return {"rules": told, "every_rows": horizon, "cost": cost, "best_naive": naive, "gain": gain, "verdict": verdict(gain["interval"])}
