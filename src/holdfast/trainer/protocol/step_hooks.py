"""What belongs to a step beside gradients and update. Here it is nothing; a kind of adapter may have something to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from holdfast.trainer.common.images import TensorImage
from holdfast.trainer.optim.optimizer import FlatOptimizer


class StepHooks:
    """What is done around an update beside the optimizer's own work. Nothing, unless a kind has something to do.

    rates: by tensor, what its learning rate is multiplied by. rounds: gradients are added over all parts of a step micro-batch by
    micro-batch, not part by part.
    """

    rounds = False

    def __init__(self, rates: Mapping[str, float] | None = None) -> None:
        self.rates = dict(rates or {})

    def hold(self, optimizer: FlatOptimizer) -> None:
        """Called once, with the optimizer whose block the weights are in."""

    def begin_pass(self, counts: bool) -> None:
        """Called before each pass through the model and back. counts: its gradients are the step's; else it only keeps others company."""

    def end_pass(self) -> None:
        """Called when the pass is over: its gradients are complete."""

    def gradients(self) -> None:
        """Called when a step's gradients are complete and not yet judged: what is to be added to them, or left out of them."""

    def norm(self, optimizer: FlatOptimizer, add: Callable[[Tensor], None]) -> Tensor:
        """The norm of all gradients, in fp32. add: puts the sum over all ranks into a tensor."""
        return optimizer.norm()

    def before(self) -> None:
        """Called before the update, while gradients are there."""

    def after(self, step: int, steps: int) -> None:
        """Called when `step` of so many has updated the weights."""

    def state(self) -> dict[str, Tensor]:
        """Live tensors that influence later steps."""
        return {}

    def image(self, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> TensorImage:
        """The image of what is held of these tensors."""
        return TensorImage(tensors, metadata)
