"""What belongs to a step beside gradients and update. Here it is nothing; a kind of adapter may have something to do."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor


class Upkeep:
    """What is done around an update beside the optimizer's own work. Nothing, unless a kind has something to do.

    rates: by tensor, what its learning rate is multiplied by.
    """

    def __init__(self, rates: Mapping[str, float] | None = None) -> None:
        self.rates = dict(rates or {})

    def gradients(self) -> None:
        """Called when a step's gradients are complete and not yet judged: what is to be added to them, or left out of them."""

    def before(self) -> None:
        """Called before the update, while gradients are there."""

    def after(self, step: int, steps: int) -> None:
        """Called when `step` of so many has updated the weights."""

    def state(self) -> dict[str, Tensor]:
        """Live tensors that influence later steps."""
        return {}
