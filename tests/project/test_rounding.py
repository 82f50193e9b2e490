"""The bound of rounding holds for sums in any order, and sees an error of one in a thousand."""

from __future__ import annotations

import pytest
import torch

from support.rounding import assert_equal_but_for_rounding, distance

TERMS = 4096


def sums(order: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Sums of 4096 numbers of either sign for 64 elements, one after the other."""
    torch.manual_seed(3)
    numbers, total = torch.randn(TERMS, 64).to(dtype), torch.zeros(64, dtype=dtype)
    for at in order.tolist():
        total = total + numbers[at]
    return total


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_in_another_order_are_equal_but_for_rounding(dtype: torch.dtype) -> None:
    orders = [torch.randperm(TERMS, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    first, *others = [sums(order, dtype) for order in orders]
    for other in others:
        assert not torch.equal(first, other)
        assert_equal_but_for_rounding(first.float(), other.float(), TERMS, dtype)


def test_one_in_a_thousand_is_no_rounding() -> None:
    torch.manual_seed(4)
    wanted = torch.randn(1000)
    with pytest.raises(AssertionError, match=r"1\.00e-03 of the norm apart"):
        assert_equal_but_for_rounding(wanted * (1 + 1e-3), wanted, TERMS)
    assert distance(torch.zeros(3), torch.zeros(3)) == 0.0
    with pytest.raises(AssertionError, match="not"):
        assert_equal_but_for_rounding(torch.ones(2), torch.ones(3), TERMS)
