"""Losses of networks on tables: of each row, so that a step can sum them over micro-batches. Mean over the members of an ensemble."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from holdfast.config.table import Table
from holdfast.tables.table.form import TargetColumn
from holdfast.trainer.tasks.tabular.metrics import middle_places


def loss_name(table: Table, target: TargetColumn) -> str:
    """Return the name of a run's loss, with auto resolved."""
    if table.loss != "auto":
        return table.loss
    return "cross-entropy" if target.kind == "classification" else "mse"


def class_weights(table: Table, target: TargetColumn) -> list[float] | None:
    """Compute a weight for each class, with mean 1 over the training rows; None where all are 1."""
    if table.class_weights == "none" or not target.classes:
        return None
    counts = np.array(target.counts, np.float64)
    if table.class_weights == "balanced":
        weights = 1.0 / counts
    else:
        weights = np.array([table.class_weights.get(name, 1.0) for name in target.classes])
    found: list[float] = (weights * counts.sum() / (weights * counts).sum()).tolist()
    return found


class RowLoss:
    """The loss of each row: outputs [rows, (members,) outputs] and targets [rows] to [rows]."""

    def __init__(self, table: Table, target: TargetColumn, device: torch.device) -> None:
        self.name, self.delta = loss_name(table, target), table.huber_delta
        weights = class_weights(table, target)
        self.weights = None if weights is None else torch.tensor(weights, device=device)
        self.quantiles = torch.tensor(table.quantiles, device=device)
        self.middle = middle_places(table.quantiles) if self.name == "quantile" else [0]
        self.outputs = len(target.classes) or (len(table.quantiles) if self.name == "quantile" else 1)

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        members = outputs if outputs.dim() == 3 else outputs.unsqueeze(1)
        if self.name == "cross-entropy":
            classes = targets.long()
            logs = functional.log_softmax(members, dim=-1)
            losses = -logs.gather(-1, classes[:, None, None].expand(-1, members.shape[1], 1)).squeeze(-1).mean(dim=1)
            return losses if self.weights is None else losses * self.weights[classes]
        apart = targets[:, None, None] - members
        if self.name == "quantile":
            return torch.maximum(self.quantiles * apart, (self.quantiles - 1) * apart).mean(dim=(1, 2))
        if self.name == "huber":
            size = apart.abs()
            return torch.where(size <= self.delta, 0.5 * apart**2, self.delta * (size - 0.5 * self.delta)).mean(dim=(1, 2))
        return (apart**2).mean(dim=(1, 2))

    def right(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Count the rows predicted right: their class, or a number nearer to the target than the training part's mean is."""
        found = combined(outputs, self.name)
        if self.name == "cross-entropy":
            return (found.argmax(dim=-1) == targets.long()).sum()
        middle = found[:, self.middle].mean(dim=1)
        return ((middle - targets).abs() < targets.abs()).sum()


def combined(outputs: Tensor, loss: str) -> Tensor:
    """Average an ensemble to [rows, outputs]: probabilities of classes (as logarithms), or numbers."""
    if outputs.dim() == 2:
        return functional.log_softmax(outputs, dim=-1) if loss == "cross-entropy" else outputs
    if loss == "cross-entropy":
        return torch.logsumexp(functional.log_softmax(outputs, dim=-1), dim=1) - float(np.log(outputs.shape[1]))
    return outputs.mean(dim=1)
