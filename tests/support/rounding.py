"""Compare numbers that two ways of computing give: equal but for rounding, by a bound that follows from what was summed.

Rounding grows with what is added up, not with what is left of it: an element near zero may be the difference of large ones. So tensors
are compared as wholes, by the norm of their difference. A sum of n terms in a format of epsilon e is off by about sqrt(n) * e of its
norm (errors of additions have either sign); processors differ in the order they add in, and stay within that.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor


def distance(found: Tensor, wanted: Tensor) -> float:
    """Return the norm of the difference as a share of the norm of `wanted`."""
    whole = float(wanted.detach().double().norm())
    return float((found.detach().double() - wanted.detach().double()).norm()) / (whole or 1.0)


def rounding_share(terms: float, dtype: torch.dtype = torch.float32) -> float:
    """Return the share of its norm that a sum of so many terms may be off by.

    terms: numbers that were added up one after the other for one element, from layer to layer; in 16 bits, whose products are summed
    in fp32, how often a number was rounded on its way, divided by how many such numbers the result is a mean of.
    """
    return math.sqrt(terms) * torch.finfo(dtype).eps


def rounded_otherwise(terms: float, dtype: torch.dtype) -> float:
    """Return the share of numbers in 16 bits that come out another where the same fp32 terms are summed in another order.

    Those that lie so near the middle between two neighbours that the fp32 sum's own rounding decides.
    """
    return rounding_share(terms) / torch.finfo(dtype).eps


def but_for_rounding(value: Any, terms: float, dtype: torch.dtype = torch.float32, condition: float = 1.0) -> Any:
    """Return what numbers are equal to that are `value`, or the numbers in it, but for rounding.

    condition: of what is computed from the sums, how many times their share it may be off by: of an exponential, the size of the
    sum; after as many steps, each from the weights of the one before, their number.
    """
    return pytest.approx(value, rel=condition * rounding_share(terms, dtype), abs=0.0)


def assert_equal_but_for_rounding(found: Tensor, wanted: Tensor, terms: float, dtype: torch.dtype = torch.float32, what: str = "") -> None:
    """Fail where `found` is further from `wanted` than rounding takes it."""
    assert found.shape == wanted.shape, f"{what}: {tuple(found.shape)}, not {tuple(wanted.shape)}"
    apart, most = distance(found, wanted), rounding_share(terms, dtype)
    assert apart <= most, f"{what}: {apart:.2e} of the norm apart, {most:.2e} is what rounding of {terms:.0f} terms explains"
