"""The Triton kernel that widens a matrix held in 4 or 8 bits straight to where a product reads it. Launched by ops.py.

As bitsandbytes does it, number by number: two of 4 bits lie in a byte, the first in its upper half; a block of BLOCK numbers shares a
scale, and where scales are held in 8 bits, OUTER of those share one. In 8 bits each row has a scale.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _scale_of(block, scales, codes, outer, offset, NESTED: tl.constexpr, OUTER: tl.constexpr, inside):
    """Return the scales of blocks, in fp32."""
    if NESTED:
        code = tl.load(scales + block, mask=inside, other=0).to(tl.int32)
        return tl.load(codes + code) * tl.load(outer + block // OUTER, mask=inside, other=0.0) + tl.load(offset)
    return tl.load(scales + block, mask=inside, other=0.0)


@triton.jit
def widen(
    packed, scales, code, codes, outer, offset, up, out, rows, features, before, width,
    FOUR: tl.constexpr, NESTED: tl.constexpr, BLOCK: tl.constexpr, OUTER: tl.constexpr, PADDED: tl.constexpr,
    BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """out = [W, 0, up]: W [rows, features] widened, `before` columns of zeros, and behind them up [rows, PADDED], where there is one."""
    row = tl.program_id(0).to(tl.int64)[None] * BR + tl.arange(0, BR)
    column = tl.program_id(1) * BC + tl.arange(0, BC)
    there = (row[:, None] < rows) & (column[None, :] < width)
    inside = there & (column[None, :] < features)
    place = row[:, None] * features + column[None, :]
    if FOUR:
        byte = tl.load(packed + place // 2, mask=inside, other=0).to(tl.int32)
        half = tl.where(place % 2 == 0, byte >> 4, byte & 15)
        value = tl.load(code + half) * _scale_of(place // BLOCK, scales, codes, outer, offset, NESTED, OUTER, inside)
    else:
        value = tl.load(packed + place, mask=inside, other=0).to(tl.float32) * tl.load(scales + row, mask=row < rows, other=0.0)[:, None]
    if PADDED:
        behind = column - features - before
        beside = there & (behind[None, :] >= 0)
        tail = tl.load(up + row[:, None] * PADDED + behind[None, :], mask=beside, other=0.0).to(tl.float32)
        value = tl.where(column[None, :] < features, value, tail)
    tl.store(out + row[:, None] * width + column[None, :], value.to(out.dtype.element_ty), mask=there)
