"""The factor that a loss has in fp16, whose small gradients would be lost without it: a part of the step's state."""

from __future__ import annotations

import torch
from torch import Tensor

_FIRST, _LARGEST = 2.0**16, 2.0**24
_PATIENCE = 2000  # updates without overflow before it doubles


class LossScale:
    """As torch.amp.GradScaler has it: half where gradients overflow, twice as much after 2000 updates without. Powers of two: exact.

    The two numbers are tensors on the host, live like an optimizer's state.
    """

    LIMITS = (_LARGEST, 0.0)  # the largest and the smallest number that training gives its state

    def __init__(self) -> None:
        self.value, self.since = torch.tensor(_FIRST), torch.tensor(0.0)

    def state(self) -> dict[str, Tensor]:
        return {"loss_scale/value": self.value, "loss_scale/since": self.since}

    def follow(self, skipped: bool) -> None:
        """Halve the scale after a skipped step; double it after enough steps in a row that updated the weights."""
        if skipped:
            self.value.mul_(0.5).clamp_min_(1.0)
            self.since.zero_()
            return
        self.since.add_(1.0)
        if self.since.item() >= _PATIENCE:
            self.value.mul_(2.0).clamp_max_(_LARGEST)
            self.since.zero_()
