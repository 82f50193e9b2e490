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
        """Take note of the optimizer whose block the weights are in. Called once."""

    def begin_pass(self, counts: bool) -> None:
        """Prepare for a forward and backward pass. counts: its gradients are the step's; else it only keeps other ranks company."""

    def end_pass(self) -> None:
        """Finish a pass, whose gradients are complete."""

    def gradients(self) -> None:
        """Add to a step's complete gradients, or take from them, before they are checked."""

    def norm(self, optimizer: FlatOptimizer, add: Callable[[Tensor], None]) -> Tensor:
        """Return the norm of all gradients in fp32. add: puts the sum over all ranks into a tensor."""
        return optimizer.norm()

    def before(self) -> None:
        """Prepare for the update, while the gradients are still there."""

    def after(self, step: int, steps: int) -> None:
        """Follow an update: `step` of `steps` has changed the weights."""

    def state(self) -> dict[str, Tensor]:
        """Return the live tensors that influence later steps."""
        return {}

    def image(self, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> TensorImage:
        """Build the image of what this process holds of these tensors."""
        return TensorImage(tensors, metadata)
