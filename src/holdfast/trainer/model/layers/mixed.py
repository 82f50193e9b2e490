"""Mixed precision: products and what lies between them in 16 bits; residual stream, norms, softmax, loss and trained weights in fp32.

What torch.autocast does, but the frozen matrices have 16 bits once and for all rather than cast in every product. bf16, or fp16 with the
loss scaled (`trainer/optim/loss_scale.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

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


class JoinedMatrix:
    """[[W, B], [A, 0]] of LoRA layers with one input, in one matrix [out + ranks, in + ranks], whose A and B are filled in.

    W of each stands below that of the one before, B on a diagonal of blocks. On a GPU r is filled up with zeros to what its fast products
    ask of a row's length. Its blocks are the frozen weights from now on; those that are held in fewer bits, or cut, are put into another
    matrix each time. comes_and_goes: between forward and backward the matrix is away, and with it what was filled in.
    """

    def __init__(self, layers: list[Any], half: torch.dtype, cut: bool = False, comes_and_goes: bool = False) -> None:
        self.layers, self.half, self.comes_and_goes = layers, half, comes_and_goes
        (first,) = layers[0].lora_A.values()
        self.rank, self.features = first.weight.shape
        self.padded = padded_rank(self.rank) if on_card(first.weight) else self.rank
        self.columns = self.padded * len(layers)
        self.sizes = [layer.base_layer.out_features for layer in layers]
        self.out = sum(self.sizes)
        biases = [layer.base_layer.bias for layer in layers]
        self.bias: Tensor | None = biases[0] if len(biases) == 1 or biases[0] is None else torch.cat(biases)
        self.times = 0  # that it was filled
        weights = [layer.base_layer.weight for layer in layers]
        self._kept: Tensor | None = None
        if not cut and weights[0].dtype == half:
            self._kept = weights[0].new_zeros(self.out + self.columns, self.features + self.columns)
            for place, weight in zip(torch.split(self._kept[: self.out], self.sizes), weights, strict=True):
                place[:, : self.features] = weight
                weight.data = place[:, : self.features]

    def fill(self, a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
        """Put A [rank, in] and B [out, rank] of each layer in, and return the matrix."""
        matrix, row = self._kept, 0
        if matrix is None:
            place = self.layers[0].base_layer.weight.device
            matrix = torch.zeros(self.out + self.columns, self.features + self.columns, dtype=self.half, device=place)
            for part, layer in zip(torch.split(matrix[: self.out], self.sizes), self.layers, strict=True):
                part[:, : self.features] = widened(layer.base_layer.weight, self.half)
        for at, (down, up, size) in enumerate(zip(a, b, self.sizes, strict=True)):
            start = at * self.padded
            matrix[self.out + start : self.out + start + self.rank, : self.features] = down
            matrix[row : row + size, self.features + start : self.features + start + self.rank] = up
            row += size
        self.times += 1
        return matrix

    def filled(self, times: int, a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
        """Return the matrix with these A and B in it; times: what `times` was when they were last put in."""
        if self._kept is None or self.times != times or self.comes_and_goes:
            return self.fill(a, b)
        return self._kept


class JoinedLinear(torch.autograd.Function):
    """y = x W' + b + s ((x keep) A') B' of layers with one input, as in lora.py, each element rounded to 16 bits once.

    Were the adapter's part added to a product that was rounded before, what a young adapter says would be lost: it is below half a unit of
    bf16's last place. So [x, s h] meets [W, B] in one product, and on the way back [dy, s dh] meets [W; A]. keep: of a single layer alone.
    `trained`: A of each layer, then B of each.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, joined: JoinedMatrix, scale: float, keep: Tensor | None, *trained: Tensor) -> tuple[Tensor, ...]:
        a, b = trained[: len(trained) // 2], trained[len(trained) // 2 :]
        matrix, features, out = joined.fill(a, b), joined.features, joined.out
        flat = x.reshape(-1, features)
        wide = padded(flat, joined.columns)
        h = wide[:, features:]
        torch.mul(F.linear(_apply_mask(wide[:, :features], keep, len(flat)), matrix[out:, :features]), scale, out=h)
        ctx.save_for_backward(*((wide, None, None) if keep is None else (x, h.clone(), keep)), *trained)
        ctx.joined, ctx.scale, ctx.times, ctx.shape = joined, scale, joined.times, x.shape
        y = F.linear(wide, matrix[:out], joined.bias)[: len(flat)]
        return tuple(as_rows(part, x) for part in torch.split(y, joined.sizes, dim=1))

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Any:
        x, h, keep, *trained = ctx.saved_tensors
        joined: JoinedMatrix = ctx.joined
        count, rank, features, out = len(outer), joined.rank, joined.features, joined.out
        matrix = joined.filled(ctx.times, trained[:count], trained[count:])
        rows = ctx.shape[:-1].numel()
        x, h = (x[:, :features], x[:, features:]) if keep is None else (padded(x.reshape(-1, features)), h)
        wide = padded_together([dy.reshape(rows, -1) for dy in outer], joined.columns)
        dy, dh = wide[:, :out], wide[:, out:]
        columns = torch.split((h.t() @ dy).t().float(), joined.sizes)
        torch.mul(dy @ matrix[:out, features:], ctx.scale, out=dh)
        lines = (dh.t() @ _apply_mask(x, keep, rows)).float()
        starts = [at * joined.padded for at in range(count)]
        da = [lines[start : start + rank] for start in starts]
        db = [part[:, start : start + rank] for part, start in zip(columns, starts, strict=True)]
        dx = None
        if ctx.needs_input_grad[0]:
            if keep is None:
                dx = wide @ matrix[:, :features]
            else:
                dx = dy @ matrix[:out, :features]
                dx += _apply_mask(dh @ matrix[out:, :features], keep, rows)
            dx = dx[:rows].view(ctx.shape)
        return dx, None, None, None, *da, *db


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
    return x if on_card(x) and not columns else padded_together([x], columns)


def padded_together(parts: Sequence[Tensor], columns: int) -> Tensor:
    """Return `parts` [rows, sizes], one beside the other, with the room of `padded`."""
    rows, size, card = len(parts[0]), sum(part.shape[1] for part in parts), on_card(parts[0])
    below = 0
    if not card:
        grain = 1 << max(5, rows.bit_length() - 5)
        below = -rows % grain
    wide = parts[0].new_empty(rows + below, size + columns)
    start = 0
    for part in parts:
        wide[:rows, start : start + part.shape[1]] = part
        start += part.shape[1]
    wide[rows:] = 0.0
    if not card:
        wide[:, size:] = 0.0
    return wide


def _apply_mask(x: Tensor, keep: Tensor | None, rows: int) -> Tensor:
    """Multiply the first `rows` rows by the mask, 0 or 1; the rows below are zeros and stay so."""
    if keep is None:
        return x
    kept = x.clone()
    kept[:rows] *= keep.view(rows, -1).to(x.dtype)
    return kept
