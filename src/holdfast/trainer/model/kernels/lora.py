"""The Triton kernels of a LoRA layer's narrow products, with dropout drawn in registers. Launched by ops.py; they choose no sizes.

A group of G layers (at most three) shares one input x. Shapes: x [tokens, features], A of each [RANK, features]
in fp32, `rows` the micro-batch's hashes [tokens], `keys` two words for each dropout module, of which `at` is the
group's first; h and dh [tokens, G * PADDED]. The mask is dropout.py's, bit for bit: one 32-bit word decides on two
neighbouring features.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _mix(value):
    """Apply MurmurHash3's finaliser to 32 unsigned bits."""
    value = value ^ (value >> 16)
    value = value * 0x85EBCA6B
    value = value ^ (value >> 13)
    value = value * 0xC2B2AE35
    return value ^ (value >> 16)


@triton.jit
def _row_words(rows, keys, number):
    return _mix(rows.to(tl.uint32, bitcast=True) ^ tl.load(keys + 2 * number).to(tl.uint32, bitcast=True))


@triton.jit
def _kept(row_words, keys, number, start, dropped, BF: tl.constexpr):
    """Compute the dropout mask [tokens, BF] from feature `start` on, which is even: True where an element stays. dropped: of 65,536."""
    pairs = (start // 2 + tl.arange(0, BF // 2)).to(tl.uint32, bitcast=True)
    columns = _mix(pairs * 0x9E3779B9 + tl.load(keys + 2 * number + 1).to(tl.uint32, bitcast=True))
    words = _mix(row_words[:, None] ^ columns[None, :]) ^ 0x80008000
    return tl.interleave(words & 0xFFFF, words >> 16).to(tl.int32, bitcast=True) >= dropped


@triton.jit
def _matrix(a, start, features, kind, RANK: tl.constexpr, BR: tl.constexpr, BF: tl.constexpr):
    """Load columns of one A, zero beyond its rank: [BR, BF]."""
    rank, column = tl.arange(0, BR), start + tl.arange(0, BF)
    there = (rank[:, None] < RANK) & (column[None, :] < features)
    return tl.load(a + rank[:, None] * features + column[None, :], mask=there, other=0.0).to(kind)


@triton.jit
def _narrowed(
    acc, x, a, row_words, keys, number, start, features, dropped, RANK: tl.constexpr, BR: tl.constexpr, BF: tl.constexpr, DROP: tl.constexpr
):
    """Return acc + (x keep) A' for one layer of the group and one stretch of features."""
    if DROP:
        x = tl.where(_kept(row_words, keys, number, start, dropped, BF), x, 0.0)
    return tl.dot(x, tl.trans(_matrix(a, start, features, x.dtype, RANK, BR, BF)), acc, input_precision="ieee")


@triton.jit
def _store_block(out, token, live, value, number, width, PADDED: tl.constexpr, BR: tl.constexpr):
    column = tl.arange(0, BR)
    place = out + token[:, None] * width + number * PADDED + column[None, :]
    tl.store(place, value.to(out.dtype.element_ty), mask=live[:, None] & (column[None, :] < PADDED))


@triton.jit(do_not_specialize=["at", "tokens"])
def project(
    x, a0, a1, a2, rows, keys, at, dropped, scale, h, wide, tokens, features, stretch,
    G: tl.constexpr, RANK: tl.constexpr, PADDED: tl.constexpr, BR: tl.constexpr, BT: tl.constexpr, BF: tl.constexpr,
    DROP: tl.constexpr, WIDE: tl.constexpr, CUT: tl.constexpr,
):  # fmt: skip
    """Compute h = scale (x keep) A' of each layer, side by side; with WIDE also [x | h] in one matrix for the frozen product.

    With CUT each program sums `stretch` of the features, and h is [programs, tokens, G * PADDED] in fp32, unscaled: `join` adds them.
    """
    token = tl.program_id(0).to(tl.int64) * BT + tl.arange(0, BT)
    live = token < tokens
    first = tl.program_id(1) * stretch if CUT else 0
    last = tl.minimum(first + stretch, features) if CUT else features
    row = tl.load(rows + token, mask=live, other=0) if DROP else 0
    words0 = _row_words(row, keys, at) if DROP else 0
    words1 = _row_words(row, keys, at + 1) if DROP and G > 1 else 0
    words2 = _row_words(row, keys, at + 2) if DROP and G > 2 else 0
    acc0 = tl.zeros([BT, BR], tl.float32)
    acc1 = tl.zeros([BT, BR], tl.float32)
    acc2 = tl.zeros([BT, BR], tl.float32)
    width = features + G * PADDED
    for start in range(first, last, BF):
        column = start + tl.arange(0, BF)
        there = live[:, None] & (column[None, :] < features)
        part = tl.load(x + token[:, None] * features + column[None, :], mask=there, other=0.0)
        if WIDE:
            tl.store(wide + token[:, None] * width + column[None, :], part, mask=there)
        acc0 = _narrowed(acc0, part, a0, words0, keys, at, start, features, dropped, RANK, BR, BF, DROP)
        if G > 1:
            acc1 = _narrowed(acc1, part, a1, words1, keys, at + 1, start, features, dropped, RANK, BR, BF, DROP)
        if G > 2:
            acc2 = _narrowed(acc2, part, a2, words2, keys, at + 2, start, features, dropped, RANK, BR, BF, DROP)
    if CUT:
        h += tl.program_id(1).to(tl.int64) * tokens * (G * PADDED)
    else:
        acc0, acc1, acc2 = acc0 * scale, acc1 * scale, acc2 * scale
    _store_block(h, token, live, acc0, 0, G * PADDED, PADDED, BR)
    if G > 1:
        _store_block(h, token, live, acc1, 1, G * PADDED, PADDED, BR)
    if G > 2:
        _store_block(h, token, live, acc2, 2, G * PADDED, PADDED, BR)
    if WIDE and not CUT:
        _store_block(wide + features, token, live, acc0, 0, width, PADDED, BR)
        if G > 1:
            _store_block(wide + features, token, live, acc1, 1, width, PADDED, BR)
        if G > 2:
            _store_block(wide + features, token, live, acc2, 2, width, PADDED, BR)


@triton.jit(do_not_specialize=["tokens", "cuts"])
def join(parts, h, wide, scale, tokens, cuts, width, features, BT: tl.constexpr, BC: tl.constexpr, WIDE: tl.constexpr):
    """Compute h = scale times the sum over the first axis of parts [cuts, tokens, width], in order; with WIDE also behind x."""
    token = tl.program_id(0).to(tl.int64) * BT + tl.arange(0, BT)
    column = tl.arange(0, BC)
    there = (token < tokens)[:, None] & (column[None, :] < width)
    place = token[:, None] * width + column[None, :]
    total = tl.zeros([BT, BC], tl.float32)
    for cut in range(cuts):
        total += tl.load(parts + tl.cast(cut, tl.int64) * tokens * width + place, mask=there, other=0.0)
    total = (total * scale).to(h.dtype.element_ty)
    tl.store(h + place, total, mask=there)
    if WIDE:
        tl.store(wide + token[:, None] * (features + width) + features + column[None, :], total, mask=there)


@triton.jit
def _block(dh, token, live, number, G: tl.constexpr, PADDED: tl.constexpr, BR: tl.constexpr):
    """Load one layer's columns of dh, zero beyond them: [tokens, BR]."""
    column = tl.arange(0, BR)
    place = dh + token[:, None] * (G * PADDED) + number * PADDED + column[None, :]
    return tl.load(place, mask=live[:, None] & (column[None, :] < PADDED), other=0.0)


@triton.jit
def _widened(
    acc, dh, a, token, live, row, keys, number, at, start, features, dropped,
    G: tl.constexpr, RANK: tl.constexpr, PADDED: tl.constexpr, BR: tl.constexpr, BF: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    """Return acc + keep (dh A) for one layer of the group."""
    outer = _block(dh, token, live, number, G, PADDED, BR)
    product = tl.dot(outer, _matrix(a, start, features, outer.dtype, RANK, BR, BF), input_precision="ieee")
    if DROP:
        words = _row_words(row, keys, at + number)
        product = tl.where(_kept(words, keys, at + number, start, dropped, BF), product, 0.0)
    return acc + product


@triton.jit(do_not_specialize=["at", "tokens"])
def spread(
    dh, a0, a1, a2, rows, keys, at, dropped, scale, dx, tokens, features,
    G: tl.constexpr, RANK: tl.constexpr, PADDED: tl.constexpr, BR: tl.constexpr, BT: tl.constexpr, BF: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    """Compute dx = scale times the sum of keep (dh A) over the group's layers, rounded once."""
    token = tl.program_id(0).to(tl.int64) * BT + tl.arange(0, BT)
    start = tl.program_id(1) * BF
    live = token < tokens
    row = tl.load(rows + token, mask=live, other=0) if DROP else 0
    acc = tl.zeros([BT, BF], tl.float32)
    acc = _widened(acc, dh, a0, token, live, row, keys, 0, at, start, features, dropped, G, RANK, PADDED, BR, BF, DROP)
    if G > 1:
        acc = _widened(acc, dh, a1, token, live, row, keys, 1, at, start, features, dropped, G, RANK, PADDED, BR, BF, DROP)
    if G > 2:
        acc = _widened(acc, dh, a2, token, live, row, keys, 2, at, start, features, dropped, G, RANK, PADDED, BR, BF, DROP)
    column = start + tl.arange(0, BF)
    place = dx + token[:, None] * features + column[None, :]
    tl.store(place, (acc * scale).to(dx.dtype.element_ty), mask=live[:, None] & (column[None, :] < features))


@triton.jit
def _gathered(
    acc, x, dh, token, live, row, keys, number, at, start, dropped,
    G: tl.constexpr, PADDED: tl.constexpr, BR: tl.constexpr, BF: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    """Return acc + dh' (x keep) for one layer of the group and one stretch of tokens."""
    if DROP:
        x = tl.where(_kept(_row_words(row, keys, at + number), keys, at + number, start, dropped, BF), x, 0.0)
    return tl.dot(tl.trans(_block(dh, token, live, number, G, PADDED, BR)), x, acc, input_precision="ieee")


@triton.jit
def _store_part(parts, share, value, number, column, features, scale, G: tl.constexpr, PADDED: tl.constexpr, BR: tl.constexpr):
    rank = tl.arange(0, BR)
    row = (share * G + number) * PADDED + rank
    there = (rank[:, None] < PADDED) & (column[None, :] < features)
    tl.store(parts + row[:, None].to(tl.int64) * features + column[None, :], value * scale, mask=there)


@triton.jit(do_not_specialize=["at", "tokens", "shares"])
def gather(
    x, dh, rows, keys, at, dropped, scale, parts, tokens, shares, features,
    G: tl.constexpr, PADDED: tl.constexpr, BR: tl.constexpr, BT: tl.constexpr, BF: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    """Compute each share of the tokens' part of scale dh' (x keep): parts [shares, G * PADDED, features], which add to A's gradient."""
    start, share = tl.program_id(0) * BF, tl.program_id(1)
    column = start + tl.arange(0, BF)
    acc0 = tl.zeros([BR, BF], tl.float32)
    acc1 = tl.zeros([BR, BF], tl.float32)
    acc2 = tl.zeros([BR, BF], tl.float32)
    each = tl.cdiv(tl.cdiv(tokens, BT), shares) * BT
    for first in range(share * each, tl.minimum((share + 1) * each, tokens), BT):
        token = first + tl.arange(0, BT).to(tl.int64)
        live = token < tokens
        row = tl.load(rows + token, mask=live, other=0) if DROP else 0
        there = live[:, None] & (column[None, :] < features)
        part = tl.load(x + token[:, None] * features + column[None, :], mask=there, other=0.0)
        acc0 = _gathered(acc0, part, dh, token, live, row, keys, 0, at, start, dropped, G, PADDED, BR, BF, DROP)
        if G > 1:
            acc1 = _gathered(acc1, part, dh, token, live, row, keys, 1, at, start, dropped, G, PADDED, BR, BF, DROP)
        if G > 2:
            acc2 = _gathered(acc2, part, dh, token, live, row, keys, 2, at, start, dropped, G, PADDED, BR, BF, DROP)
    _store_part(parts, share, acc0, 0, column, features, scale, G, PADDED, BR)
    if G > 1:
        _store_part(parts, share, acc1, 1, column, features, scale, G, PADDED, BR)
    if G > 2:
        _store_part(parts, share, acc2, 2, column, features, scale, G, PADDED, BR)
