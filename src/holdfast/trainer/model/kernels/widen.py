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
        scale = tl.load(codes + code) * tl.load(outer + block // OUTER, mask=inside, other=0.0) + tl.load(offset)
    else:
        scale = tl.load(scales + block, mask=inside, other=0.0)
    return scale


@triton.jit
def widen(
    packed, scales, code, codes, outer, offset, up, out, rows, features, before, width,
    FOUR: tl.constexpr, NESTED: tl.constexpr, BLOCK: tl.constexpr, OUTER: tl.constexpr, PADDED: tl.constexpr,
    BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Write out = [W, 0, up]: W [rows, features] dequantised, `before` columns of zeros, then up [rows, PADDED] where there is one.

    The programs of a row go over W first and then over what is behind it; in 4 bits features are even, so that a byte is of one row.
    """
    row = tl.program_id(0).to(tl.int64)[None] * BR + tl.arange(0, BR)
    part, parts = tl.program_id(1), tl.cdiv(features, BC)
    if part < parts:
        column = part * BC + tl.arange(0, BC)
        inside = (row[:, None] < rows) & (column[None, :] < features)
        if FOUR:
            byte = part * (BC // 2) + tl.arange(0, BC // 2)
            here = (row[:, None] < rows) & (byte[None, :] < features // 2)
            place = row[:, None] * (features // 2) + byte[None, :]
            two = tl.load(packed + place, mask=here, other=0).to(tl.int32)
            scale = _scale_of(place // (BLOCK // 2), scales, codes, outer, offset, NESTED, OUTER, here)
            value = tl.interleave(tl.load(code + (two >> 4)) * scale, tl.load(code + (two & 15)) * scale)
        else:
            scale = tl.load(scales + row, mask=row < rows, other=0.0)
            value = tl.load(packed + row[:, None] * features + column[None, :], mask=inside, other=0).to(tl.float32) * scale[:, None]
        tl.store(out + row[:, None] * width + column[None, :], value.to(out.dtype.element_ty), mask=inside)
    elif PADDED:
        column = features + (part - parts) * BC + tl.arange(0, BC)
        there = (row[:, None] < rows) & (column[None, :] < width)
        behind = column - features - before
        tail = tl.load(up + row[:, None] * PADDED + behind[None, :], mask=there & (behind[None, :] >= 0), other=0.0)
        tl.store(out + row[:, None] * width + column[None, :], tail.to(out.dtype.element_ty), mask=there)
