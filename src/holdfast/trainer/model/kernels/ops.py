"""The kernels of LoRA layers and of the loss as operations of torch, so that graphs and fake tensors see them.

Times nothing: shapes choose the sizes.

`rows` and `keys` say which elements dropout keeps (dropout.py): those of the modules from `at` on, one for each A,
`dropped` of 65,536 away; without them nothing is dropped. Between forward and backward no mask exists.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

MOST_LAYERS = 3  # in one group
MOST_RANK = 512
GRAIN = 8  # a rank is filled up to a multiple of this with zeros: 16 bytes, which the card's fast products ask of their rows
_COLUMNS = 4096  # of a row of logits at once
_LEAST = 4  # blocks of features in a stretch of them
_JOINED = 4096  # numbers at once, where stretches are added
_BLOCKS = 264  # of work at least, where the shape has as many: two for each processor of the largest card

_LIBRARY = torch.library.Library("holdfast", "DEF")  # type: ignore[no-untyped-call]
_HELD = "Tensor packed, Tensor scales, Tensor[] codes, int[] shared"
_TAIL = "Tensor? rows, Tensor? keys, int at, int dropped, float scale"
for _signature in (
    f"project(Tensor x, Tensor[] a, {_TAIL}, bool wide) -> (Tensor, Tensor)",
    f"spread(Tensor dh, Tensor[] a, {_TAIL}) -> Tensor",
    f"gather(Tensor x, Tensor dh, int layers, {_TAIL}) -> Tensor",
    f"widen({_HELD}, Tensor? up, int rows, int features, int before, ScalarType kind) -> Tensor",
    "slopes(Tensor(a!) logits, Tensor labels, Tensor(b!) losses, Tensor(c!) right, float scale, bool wanted) -> ()",
):
    _LIBRARY.define(_signature)  # type: ignore[no-untyped-call]

project: Any = torch.ops.holdfast.project
spread: Any = torch.ops.holdfast.spread
gather: Any = torch.ops.holdfast.gather
widen: Any = torch.ops.holdfast.widen
slopes: Any = torch.ops.holdfast.slopes


def padded_rank(rank: int) -> int:
    return -(-rank // GRAIN) * GRAIN


def _project(
    x: Tensor, a: list[Tensor], rows: Tensor | None, keys: Tensor | None, at: int, dropped: int, scale: float, wide: bool
) -> tuple[Tensor, Tensor]:
    """Compute scale (x keep) A' of each layer, and with `wide` also [x | that], else nothing."""
    from holdfast.trainer.model.kernels import lora

    (tokens, features), (rank, blocks) = x.shape, _ranks(a)
    h, both = _of_project(x, a, rows, keys, at, dropped, scale, wide)
    sizes = sizes_of_project(blocks * len(a), x.element_size() == 2, _spills(x))
    size = sizes["BT"]
    cuts, stretch = _cuts(-(-tokens // size), features, sizes["BF"])
    parts = x.new_empty(cuts, *h.shape, dtype=torch.float32) if cuts > 1 else h
    lora.project[(-(-tokens // size), cuts)](
        x.contiguous(), *_three(a), *_drawn(rows, keys, x), at, dropped, scale, parts, both, tokens, features, stretch,
        G=len(a), RANK=rank, PADDED=padded_rank(rank), BR=blocks, DROP=rows is not None, WIDE=wide, CUT=cuts > 1, **sizes,
    )  # fmt: skip
    if cuts > 1:
        beside = _power(h.shape[1])
        at_once = max(1, _JOINED // beside)
        lora.join[(-(-tokens // at_once),)](
            parts, h, both, scale, tokens, cuts, h.shape[1], features, BT=at_once, BC=beside, WIDE=wide, num_warps=4
        )
    return h, both


def _cuts(blocks: int, features: int, columns: int) -> tuple[int, int]:
    """Return (number of stretches the features of a narrow product are cut into, so that a whole card works; features of each)."""
    cuts = max(1, min(_BLOCKS // blocks, features // (_LEAST * columns)))
    stretch = -(-features // (cuts * columns)) * columns
    return -(-features // stretch), stretch


def _of_project(
    x: Tensor, a: list[Tensor], rows: Tensor | None, keys: Tensor | None, at: int, dropped: int, scale: float, wide: bool
) -> tuple[Tensor, Tensor]:
    width = len(a) * padded_rank(a[0].shape[0])
    return x.new_empty(len(x), width), x.new_empty((len(x), x.shape[1] + width) if wide else (0,))


def _spread(dh: Tensor, a: list[Tensor], rows: Tensor | None, keys: Tensor | None, at: int, dropped: int, scale: float) -> Tensor:
    """Compute scale times the sum of keep (dh A) over the layers."""
    from holdfast.trainer.model.kernels import lora

    (rank, blocks), tokens, features = _ranks(a), len(dh), a[0].shape[1]
    dx = _of_spread(dh, a, rows, keys, at, dropped, scale)
    sizes = sizes_of_spread(blocks, len(a), dh.element_size() == 2, _spills(dh))
    lora.spread[(-(-tokens // sizes["BT"]), -(-features // sizes["BF"]))](
        dh, *_three(a), *_drawn(rows, keys, dh), at, dropped, scale, dx, tokens, features,
        G=len(a), RANK=rank, PADDED=padded_rank(rank), BR=blocks, DROP=rows is not None, **sizes,
    )  # fmt: skip
    return dx


def _of_spread(dh: Tensor, a: list[Tensor], rows: Tensor | None, keys: Tensor | None, at: int, dropped: int, scale: float) -> Tensor:
    return dh.new_empty(len(dh), a[0].shape[1])


def _gather(x: Tensor, dh: Tensor, layers: int, rows: Tensor | None, keys: Tensor | None, at: int, dropped: int, scale: float) -> Tensor:
    """Compute parts of scale dh' (x keep) that add up, over axis 0, to the gradient of each A: [shares, layers * padded rank, features]."""
    from holdfast.trainer.model.kernels import lora

    (tokens, features), padded = x.shape, dh.shape[1] // layers
    blocks = max(16, _power(padded))
    parts = _of_gather(x, dh, layers, rows, keys, at, dropped, scale)
    x = x.contiguous()
    sizes = sizes_of_gather(blocks * layers, _spills(x))
    lora.gather[(-(-features // sizes["BF"]), len(parts))](
        x, dh, *_drawn(rows, keys, x), at, dropped, scale, parts, tokens, len(parts), features,
        G=layers, PADDED=padded, BR=blocks, DROP=rows is not None, **sizes,
    )  # fmt: skip
    return parts


def _of_gather(x: Tensor, dh: Tensor, layers: int, rows: Tensor | None, keys: Tensor | None, at: int, dropped: int, scale: float) -> Tensor:
    columns = sizes_of_gather(max(16, _power(dh.shape[1] // layers)) * layers, spills=False)["BF"]
    shares = max(1, min(-(-_BLOCKS // -(-x.shape[1] // columns)), len(x) // 256))
    return x.new_empty(shares, dh.shape[1], x.shape[1], dtype=torch.float32)


def _widen(
    packed: Tensor,
    scales: Tensor,
    codes: list[Tensor],
    shared: list[int],
    up: Tensor | None,
    rows: int,
    features: int,
    before: int,
    kind: torch.dtype,
) -> Tensor:
    """Return [W, 0, up] in `kind`: a matrix that is held in fewer bits, `before` columns of zeros, and behind them `up`, where given.

    codes: in 4 bits their 16 values; where scales are held in 8 bits also those 256, the scales of these, and what is added to them.
    shared: how many numbers have one scale, and how many scales.
    """
    from holdfast.trainer.model.kernels import widen as kernel

    out = _of_widen(packed, scales, codes, shared, up, rows, features, before, kind)
    code, nested, outer, offset = [*codes, *[scales] * (4 - len(codes))]
    width = out.shape[1]
    kernel.widen[(-(-rows // 4), -(-features // 512) + -(-(width - features) // 512))](
        packed, scales, code, nested, outer, offset, scales if up is None else up, out, rows, features, before, width,
        FOUR=bool(codes), NESTED=len(codes) > 1, BLOCK=shared[0], OUTER=shared[1], PADDED=0 if up is None else up.shape[1],
        BR=4, BC=512, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    return out


def _of_widen(
    packed: Tensor,
    scales: Tensor,
    codes: list[Tensor],
    shared: list[int],
    up: Tensor | None,
    rows: int,
    features: int,
    before: int,
    kind: torch.dtype,
) -> Tensor:
    return packed.new_empty(rows, features + (0 if up is None else before + up.shape[1]), dtype=kind)


def _slopes(logits: Tensor, labels: Tensor, losses: Tensor, right: Tensor, scale: float, wanted: bool) -> None:
    """Write each row's cross-entropy of scaled logits and whether its label is largest; where `wanted`, the gradient over the logits."""
    from holdfast.trainer.model.kernels import loss

    rows, columns = logits.shape
    size = min(_COLUMNS, max(16, _power(columns)))
    loss.slopes[(rows,)](
        logits, labels, losses, right.view(torch.uint8), columns, scale,
        GRAD=wanted, BC=size, num_warps=8,
    )  # fmt: skip


def _of_slopes(logits: Tensor, labels: Tensor, losses: Tensor, right: Tensor, scale: float, wanted: bool) -> None:
    return None


for _name, _work, _shapes in (
    ("project", _project, _of_project),
    ("spread", _spread, _of_spread),
    ("gather", _gather, _of_gather),
    ("widen", _widen, _of_widen),
    ("slopes", _slopes, _of_slopes),
):
    _LIBRARY.impl(_name, _work, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"holdfast::{_name}", _shapes, lib=_LIBRARY)


def _three(a: list[Tensor]) -> list[Tensor]:
    return [*a, *[a[0]] * (MOST_LAYERS - len(a))]


def _drawn(rows: Tensor | None, keys: Tensor | None, stand_in: Tensor) -> tuple[Tensor, Tensor]:
    return (stand_in, stand_in) if rows is None or keys is None else (rows, keys)


def _ranks(a: list[Tensor]) -> tuple[int, int]:
    """Return (the layers' rank, what a kernel's block holds of it: a power of 2, at least 16)."""
    rank = a[0].shape[0]
    return rank, max(16, _power(padded_rank(rank)))


def _power(size: int) -> int:
    return 1 << (size - 1).bit_length()


def _of_width(width: int, few: int, some: int, many: int) -> int:
    """Choose a side of a block whose other side is `width`, such that the fp32 sums stay in registers."""
    return few if width <= 192 else some if width <= 384 else many


def _columns(halves: bool, width: int) -> int:
    """Return the number of features read at once, such that the inputs of a product fit into 64 KiB. halves: of 16 bits each."""
    return 64 if halves and width <= 128 else 32


def sizes_of_project(width: int, halves: bool, spills: bool) -> dict[str, int]:
    """Return the sizes that `project` is launched with. width: of a group's blocks of ranks; spills: where shapes of other cards do."""
    columns = _columns(halves, width) // (2 if spills else 1)
    wide = width > 64
    return {"BT": _of_width(width, 64, 32, 16), "BF": columns, "num_warps": 8 if wide else 4, "num_stages": 2 if wide or spills else 3}


def sizes_of_spread(blocks: int, layers: int, halves: bool, spills: bool) -> dict[str, int]:
    """Return the sizes that `spread` is launched with, for `layers` of `blocks` ranks."""
    tokens, columns = 64 if blocks <= 128 else 32, _columns(halves, blocks)
    if spills and blocks * layers > 48:
        tokens, columns = 64 if blocks * layers <= 128 else 32, 32
    return {"BT": tokens, "BF": columns, "num_warps": 4}


def sizes_of_gather(width: int, spills: bool) -> dict[str, int]:
    """Return the sizes that `gather` is launched with. width: of a group's blocks of ranks."""
    columns = _of_width(width, 128, 64, 32) // (2 if spills and width > 96 else 1)
    return {"BT": 32, "BF": columns, "num_warps": 8, "num_stages": 3}


def _spills(x: Tensor) -> bool:
    """Return whether x lies on a card with RDNA 3, whose matrix instructions hold their operands twice: blocks are smaller there."""
    if not x.is_cuda or torch.version.hip is None:
        return False
    return str(getattr(torch.cuda.get_device_properties(x.device), "gcnArchName", "")).startswith("gfx11")
