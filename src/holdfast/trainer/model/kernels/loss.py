"""The Triton kernel of the output layer's loss: a row of logits becomes its own gradient. Launched by ops.py; it chooses no sizes."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

_LOWEST = tl.constexpr(-1e38)  # below any logit, and no infinity, whose difference to itself is no number


@triton.jit
def slopes(logits, labels, losses, right, columns, scale, GRAD: tl.constexpr, BC: tl.constexpr):
    """Compute one row's cross-entropy and whether its label has the largest logit; with GRAD put the gradient in the logits' place.

    Two visits: the first leaves each lane's largest value and the sum of powers below it, the second needs both of all lanes.
    """
    row = tl.program_id(0).to(tl.int64)
    logits += row * columns
    label = tl.load(labels + row)
    most = tl.full([BC], _LOWEST, tl.float32)
    total = tl.zeros([BC], tl.float32)
    for start in range(0, columns, BC):
        column = start + tl.arange(0, BC)
        value = tl.load(logits + column, mask=column < columns, other=0.0).to(tl.float32) * scale
        value = tl.where(column < columns, value, _LOWEST)
        larger = tl.maximum(most, value)
        total = total * tl.exp(most - larger) + tl.where(column < columns, tl.exp(value - larger), 0.0)
        most = larger
    largest = tl.max(most, 0)
    total_of_all = tl.sum(total * tl.exp(most - largest), 0)
    picked = tl.load(logits + label).to(tl.float32) * scale
    tl.store(losses + row, tl.log(total_of_all) - (picked - largest))
    tl.store(right + row, (picked == largest).to(tl.uint8))
    if GRAD:
        for start in range(0, columns, BC):
            column = start + tl.arange(0, BC)
            value = tl.load(logits + column, mask=column < columns, other=0.0).to(tl.float32) * scale
            share = tl.exp(value - largest) / total_of_all
            slope = tl.where(column == label, share - 1.0, share) * scale
            tl.store(logits + column, slope.to(logits.dtype.element_ty), mask=column < columns)
