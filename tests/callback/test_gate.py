"""Which gradients may move the weights."""

from __future__ import annotations

import math

import pytest
import torch

from holdfast.callback.gate import GradientGate


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(("value", "passes"), [(3000.0, True), (math.inf, False), (math.nan, False)])
def test_gradients_are_dropped_where_one_is_not_finite_and_nowhere_else(kind: torch.dtype, value: float, passes: bool) -> None:
    """Finite ones of 16 bits were dropped as not finite where their norm is beyond 65,504, and ten such steps ended the loop."""
    weight = torch.nn.Parameter(torch.zeros(1000, dtype=kind))
    weight.grad = torch.full((1000,), 3000.0, dtype=kind)
    weight.grad[7] = value
    gate = GradientGate(10)
    assert gate.passes([weight]) is passes
    assert (weight.grad is None, gate.dropped) == (not passes, int(not passes))
