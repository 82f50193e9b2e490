"""Compare numbers that two ways of computing give: equal but for rounding, by a bound that follows from what was summed.

Rounding grows with what is added up, not with what is left of it: an element near zero may be the difference of large ones. So tensors
are compared as wholes, by the norm of their difference. A sum of n terms in a format of epsilon e is off by about sqrt(n) * e of its
norm (errors of additions have either sign); processors differ in the order they add in, and stay within that.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def distance(found: Tensor, wanted: Tensor) -> float:
    """Return the norm of the difference as a share of the norm of `wanted`."""
    whole = float(wanted.detach().double().norm())
    return float((found.detach().double() - wanted.detach().double()).norm()) / (whole or 1.0)


def rounding_share(terms: int, dtype: torch.dtype = torch.float32) -> float:
    """Return the share of its norm that a sum of so many terms may be off by.

    terms: numbers that were added up one after the other for one element, from layer to layer.
    """
    return math.sqrt(terms) * torch.finfo(dtype).eps


def assert_equal_but_for_rounding(found: Tensor, wanted: Tensor, terms: int, dtype: torch.dtype = torch.float32, what: str = "") -> None:
    """Fail where `found` is further from `wanted` than rounding takes it."""
    assert found.shape == wanted.shape, f"{what}: {tuple(found.shape)}, not {tuple(wanted.shape)}"
    apart, most = distance(found, wanted), rounding_share(terms, dtype)
    assert apart <= most, f"{what}: {apart:.2e} of the norm apart, {most:.2e} is what rounding of {terms} terms explains"
