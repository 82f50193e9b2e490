"""Mixed precision: products and what lies between them in 16 bits; residual stream, norms, softmax, loss and trained weights in fp32.

What torch.autocast does, but the frozen matrices have 16 bits once and for all rather than cast in every product. bf16, or fp16 with the
loss scaled (`trainer/optim/loss_scale.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.trainer.common.on_card import on_card
from holdfast.trainer.model.frozen.halves import widened
from holdfast.trainer.model.kernels.ops import padded_rank

HALF = torch.bfloat16
HALF_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}  # by the name of the setting dtype


def mix_precision(model: Any, device: str, half: torch.dtype = HALF, halve: bool = True) -> None:
    """Bring a model's matrices to 16 bits and all else to fp32, and let its decoder compute accordingly. `device`: torch's type of it.

    halve: False where matrices that are to be trained would be rounded: each product then narrows a copy.
    """
    for module in model.modules():
        own = list(module.named_parameters(recurse=False))
        wanted = half if halve and any(parameter.ndim > 1 for _, parameter in own) else torch.float32
        for _, parameter in own:
            parameter.requires_grad_(False)
            if parameter.is_floating_point():  # not held in fewer bits
                parameter.data = parameter.data.to(wanted)
        if isinstance(module, nn.Embedding):
            module.register_forward_hook(_cast_to_fp32)
        elif "Norm" in type(module).__name__:
            module.register_forward_hook(partial(_cast_to_half, half))
    output = model.get_output_embeddings()
    if output is not None:
        output.register_forward_pre_hook(_as_its_weight)
    inner: Any = getattr(model, model.base_model_prefix, None) or model
    inner.forward = torch.autocast(device, half)(inner.forward)


def _as_its_weight(module: Any, inputs: tuple[Tensor]) -> tuple[Tensor]:
    """Cast the input of the output layer to its weight's dtype, which is fp32 where the layer is trained."""
    weight = getattr(module, "weight", None)
    return inputs if weight is None else (inputs[0].to(weight.dtype), *inputs[1:])


def _cast_to_fp32(_module: nn.Module, _inputs: Any, out: Tensor) -> Tensor:
    """Cast an embedding's output to fp32, in which the residual stream begins."""
    return out.float()


def _cast_to_half(half: torch.dtype, _module: nn.Module, _inputs: Any, out: Tensor) -> Tensor:
    """Cast a norm's output to the dtype of matmuls: done here it is cast once, and kept once for backward."""
    return out.to(half)


Joined: TypeAlias = Callable[[], Tensor]


def joined(module: Any, half: torch.dtype, cut: bool = False) -> Joined:
    """Build [[W, B], [A, 0]] of a LoRA layer in one matrix [out + r, in + r], whose A and B are to be filled in.

    On a GPU r is filled up with zeros to what its fast products ask of a row's length.
    Its first block is the frozen weight from now on; one that is held in fewer bits, or cut, is put into another matrix each time.
    """
    weight, (a,), (b,) = module.base_layer.weight, module.lora_A.values(), module.lora_B.values()
    features, out, rank = a.weight.shape[1], b.weight.shape[0], a.weight.shape[0]
    rank = padded_rank(rank) if on_card(a.weight) else rank
    if cut or weight.dtype != half:
        return partial(_fresh, module.base_layer, half, out, features, rank)
    matrix: Tensor = weight.new_zeros(out + rank, features + rank)
    matrix[:out, :features] = weight
    weight.data = matrix[:out, :features]
    return lambda: matrix


def _fresh(base: Any, half: torch.dtype, out: int, features: int, rank: int) -> Tensor:
    matrix = torch.zeros(out + rank, features + rank, dtype=half, device=base.weight.device)
    matrix[:out, :features] = widened(base.weight, half)
    return matrix


class JoinedLinear(torch.autograd.Function):
    """y = x W' + b + s ((x keep) A') B' as in lora.py, each element rounded to 16 bits once. whole: what `joined` made.

    Were the adapter's part added to a product that was rounded before, what a young adapter says would be lost: it is below half a unit of
    bf16's last place. So [x, s h] meets [W, B] in one product, and on the way back [dy, s dh] meets [W; A].
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, whole: Joined, bias: Tensor | None, a: Tensor, b: Tensor, scale: float, keep: Tensor | None) -> Tensor:
        (rank, features), out = a.shape, b.shape[0]
        matrix = whole()
        matrix[out : out + rank, :features] = a
        matrix[:out, features : features + rank] = b
        flat = x.reshape(-1, features)
        wide = padded(flat, matrix.shape[1] - features)
        h = wide[:, features:]
        torch.mul(F.linear(_apply_mask(wide[:, :features], keep, len(flat)), matrix[out:, :features]), scale, out=h)
        ctx.save_for_backward(x, h.clone(), keep, a, b)
        ctx.whole, ctx.scale = whole, scale
        return as_rows(F.linear(wide, matrix[:out], bias)[: len(flat)], x)

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> Any:
        x, h, keep, a, b = ctx.saved_tensors
        (rank, features), out, matrix = a.shape, b.shape[0], ctx.whole()
        matrix[out : out + rank, :features] = a
        matrix[:out, features : features + rank] = b
        flat = x.reshape(-1, features)
        wide = padded(outer.reshape(-1, out), h.shape[1])
        dy, dh = wide[:, :out], wide[:, out:]
        db = (h[:, :rank].t() @ dy).t().float()
        torch.mul(dy @ matrix[:out, features:], ctx.scale, out=dh)
        da = (dh[:, :rank].t() @ _apply_mask(padded(flat), keep, len(flat))).float()
        dx = None
        if ctx.needs_input_grad[0]:
            if keep is None:
                dx = wide @ matrix[:, :features]
            else:
                dx = dy @ matrix[:out, :features]
                dx += _apply_mask(dh @ matrix[out:, :features], keep, len(flat))
            dx = dx[: len(flat)].view(x.shape)
        return dx, None, None, da, db, None, None


def as_rows(out: Tensor, x: Tensor) -> Tensor:
    """Return `out` [rows, size] in the shape of `x` [*, in], as no view: models add to outputs, which autograd refuses of a view here."""
    shaped: Tensor = torch.ops.aten._unsafe_view(out, [*x.shape[:-1], out.shape[-1]])
    return shaped


def padded(x: Tensor, columns: int = 0) -> Tensor:
    """Return `x` [rows, size] with room for `columns` more to its right, and on a CPU zero rows below it.

    oneDNN compiles a bf16 product for each shape and keeps it (0.3 ms and 0.6 MB, measured), so rows are rounded up, by a sixteenth at most
    from 512 rows on. Where a product takes fewer columns than a row has, it reads some of those to the right, too, and multiplies them by
    zero: what lay in that memory must not be a NaN (`tests/trainer/test_mixed_precision.py`).
    """
    rows = len(x)
    card = on_card(x)
    if card and not columns:
        return x
    if not card:
        grain = 1 << max(5, rows.bit_length() - 5)
        rows = -(-rows // grain) * grain
    wide = x.new_empty(rows, x.shape[1] + columns)
    wide[: len(x), : x.shape[1]] = x
    wide[len(x) :] = 0.0
    if not card:
        wide[:, x.shape[1] :] = 0.0
    return wide


def _apply_mask(x: Tensor, keep: Tensor | None, rows: int) -> Tensor:
    """Multiply the first `rows` rows by the mask, 0 or 1; the rows below are zeros and stay so."""
    if keep is None:
        return x
    kept = x.clone()
    kept[:rows] *= keep.view(rows, -1).to(x.dtype)
    return kept
