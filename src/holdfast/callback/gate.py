"""Whether the gradients of a step may move the weights: their norm has to be finite."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

IN_A_ROW = 10  # dropped steps after which it is no accident any more


class GradientGate:
    """dropped: steps so far; in_a_row: the newest of them that followed one another."""

    def __init__(self, limit: int) -> None:
        self.limit, self.dropped, self.in_a_row = limit, 0, 0

    def passes(self, parameters: Iterable[torch.nn.Parameter]) -> bool:
        """True if the norm of the gradients is finite; where it is not they are dropped, and the optimizer moves nothing."""
        held = [one for one in parameters if one.grad is not None]
        if not held or math.isfinite(norm_of([one.grad for one in held if one.grad is not None])):
            self.in_a_row = 0
            return True
        for one in held:
            one.grad = None
        self.dropped, self.in_a_row = self.dropped + 1, self.in_a_row + 1
        return False


@torch.no_grad()
def norm_of(gradients: list[torch.Tensor]) -> float:
    """Compute the norm of all gradients together; not finite where one value is not."""
    by_kind: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    for one in gradients:
        whole = one.full_tensor() if hasattr(one, "full_tensor") else one  # of DTensor; each rank asks
        whole = whole.coalesce().values() if whole.is_sparse else whole
        by_kind.setdefault((whole.device, whole.dtype), []).append(whole)
    return math.hypot(*(float(_norm(held)) for held in by_kind.values()))


def _norm(held: list[torch.Tensor]) -> torch.Tensor:
    narrow = held[0].dtype == torch.float16  # in which a norm above 65,504 is none
    norms: list[torch.Tensor] = (
        [torch.linalg.vector_norm(one, dtype=torch.float32) for one in held] if narrow else list(torch._foreach_norm(held))
    )
    total: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms).float())
    return total
