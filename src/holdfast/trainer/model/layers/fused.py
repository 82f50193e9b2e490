"""LoRA layers for a GPU: those with one input compute together, dropout is drawn inside their products, no mask exists.

In place of lora.py and mixed.py where the kernels (kernels/) are proven (fused_proof.py). PEFT's modules stay what is
saved. Each element is rounded once, as in mixed.py: what an adapter says is never added to a product rounded before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.trainer.model.frozen.halves import held_linear
from holdfast.trainer.model.frozen.offloaded_layers import Near, everywhere
from holdfast.trainer.model.kernels import ops
from holdfast.trainer.model.layers.dropout import StatelessDropout, StepContext
from holdfast.trainer.model.layers.lora import plain_layers
from holdfast.trainer.model.layers.mixed import HALF, as_rows
from holdfast.trainer.model.layers.siblings import SiblingGroup, dropouts_of, group_siblings, same_shapes


class MaskSource(NamedTuple):
    """What masks are drawn from: row hashes [tokens], keys of all modules, the group's first, dropped of 65,536."""

    rows: Tensor | None
    keys: Tensor | None
    at: int
    dropped: int


class FusedLayers:
    """The plain LoRA layers of a model in groups; variants keep PEFT's own forward pass, as they do in lora.py."""

    def __init__(self, model: nn.Module, context: StepContext, mixed: bool, near: Near = everywhere) -> None:
        self.near = near  # inside, the frozen weights of a group are on the card
        layers = plain_layers(model)
        context.keep_keys(next(iter(layers[0].lora_A.values())).weight.device if layers else torch.device("cpu"))  # where it computes
        comes_and_goes = near is not everywhere
        whole = [layer for layer in layers if not _shares_bytes(layer.base_layer)]
        self.groups = group_siblings(model, whole, _alike, lambda found: FusedGroup(found, mixed, comes_and_goes), near)

    @contextmanager
    def off(self) -> Iterator[None]:
        """Compute each layer alone and with torch's operations within the context, as the reference of the proof."""
        for group in self.groups:
            group.alone = True
        yield
        for group in self.groups:
            group.alone = False


def _shares_bytes(base: Any) -> bool:
    """Return whether a byte of a 4-bit weight spans two rows, which the dequantising kernel does not take."""
    return getattr(base.weight, "quant_state", None) is not None and base.in_features % 2 == 1


def _alike(layers: list[Any]) -> bool:
    """Return whether layers can form one group: the same shape of A, the same factors, dropout modules in a row."""
    dropouts = dropouts_of(layers)
    if dropouts[0] is None:
        return same_shapes(layers) and not any(dropouts)
    in_a_row = [getattr(one, "number", None) for one in dropouts] == [dropouts[0].number + at for at in range(len(layers))]
    return same_shapes(layers) and in_a_row and len({one.p for one in dropouts}) == 1


class FusedGroup(SiblingGroup):
    """LoRA layers with one input x: y = x W' + b + s ((x keep) A') B' of each.

    x and all s h lie side by side in one matrix that meets [W, B], unless that copy of x is larger than what it saves:
    then s h B' comes first and x W' is added to it. With `joined`, the outputs are parts of one product, too.
    Of frozen weights in fewer bits [W, B] is made for each product, of one layer at a time.
    """

    def __init__(self, layers: list[Any], mixed: bool, comes_and_goes: bool = False) -> None:
        super().__init__(layers)
        self.alone = False
        self.comes_and_goes = comes_and_goes  # the frozen weights, and with them what lies beside them, between forward and backward
        self.kind = HALF if mixed else torch.float32
        (name,) = layers[0].lora_A
        self.rank, self.features = layers[0].lora_A[name].weight.shape
        self.padded = ops.padded_rank(self.rank)
        self.dropout: Any = layers[0].lora_dropout[name]
        self.scale: float = layers[0].scaling[name]
        self.sizes = [layer.base_layer.out_features for layer in layers]
        biases = [layer.base_layer.bias for layer in layers]
        out = sum(self.sizes)
        self.fewer = not layers[0].base_layer.weight.is_floating_point()  # bits
        self.wide = mixed and (biases[0] is not None or self.features <= 2 * out)
        self.joined = (
            self.wide and not self.fewer and len(layers) > 1 and out <= 2 * self.features and len({bias is None for bias in biases}) == 1
        )
        self.weights = [layer.base_layer.weight for layer in layers]
        self.bias = torch.cat(biases) if self.joined and biases[0] is not None else None
        self.matrices, self.ups = self._laid_out()

    def _laid_out(self) -> tuple[list[Tensor], list[Tensor]]:
        """Lay out matrices [W, B] whose views replace the frozen weights; return them, and each B as matmuls take it.

        Where weights are held in fewer bits, or products stay apart, there are no matrices, and each B is alone.
        """
        padded, count = self.padded, len(self.layers)
        if self.fewer or not self.wide:
            place = self.weights[0].device
            return [], [torch.zeros(size, padded, dtype=self.kind, device=place) for size in self.sizes]
        if self.joined:
            matrices = [self.weights[0].new_zeros(sum(self.sizes), self.features + count * padded)]
            parts = list(torch.split(matrices[0], self.sizes))
        else:
            blocks = enumerate(zip(self.weights, self.sizes, strict=True), 1)
            matrices = [weight.new_zeros(size, self.features + number * padded) for number, (weight, size) in blocks]
            parts = matrices
        for part, weight in zip(parts, self.weights, strict=True):
            part[:, : self.features] = weight
            weight.data = part[:, : self.features]
        starts = [self.features + at * padded for at in range(count)]
        return matrices, [part[:, start : start + padded] for part, start in zip(parts, starts, strict=True)]

    def forward(self, at: int, x: Tensor) -> Tensor:
        """Return the output of one layer; with `alone` as the reference has it."""
        layer = self.layers[at]
        if not self.alone or layer.disable_adapters or layer.merged:
            return super().forward(at, x)
        dropout = layer.lora_dropout[next(iter(layer.lora_A))]
        return self.reference(at, x, *self.trained(at), dropout.mask(x) if isinstance(dropout, StatelessDropout) else None)

    def computed(self, x: Tensor, trained: list[tuple[Tensor, Tensor]], drawn: MaskSource | None = None) -> tuple[Tensor, ...]:
        """Compute the outputs of all layers, given A and B of each. drawn: other masks than those of the micro-batch."""
        a, b = zip(*trained, strict=True)
        drawn = drawn or self._drawn(x)
        scale = self.scale / (1.0 if drawn.rows is None else self.dropout.share)
        outs: tuple[Tensor, ...] = _Together.apply(x.to(self.kind), self, drawn, scale, *a, *b)  # type: ignore[no-untyped-call]
        return outs

    def reference(self, at: int, x: Tensor, a: Tensor, b: Tensor, keep: Tensor | None) -> Tensor:
        """Compute one layer's output with torch: in fp32 from the same rounded values, rounded at the end."""
        x, a, b = (tensor.to(self.kind).float() for tensor in (x, a, b))
        kept, scale = (x, self.scale) if keep is None else (x * keep, self.scale / self.dropout.share)
        base = self.layers[at].base_layer
        with torch.autocast(x.device.type, enabled=False):
            out = held_linear(base, x)  # nothing of a wide weight is kept for backward, of no layer
            return (out + F.linear(F.linear(kept, a), b) * scale).to(self.kind)

    def _drawn(self, x: Tensor) -> MaskSource:
        rows = self.dropout.rows(x) if isinstance(self.dropout, StatelessDropout) else None
        if rows is None:
            return MaskSource(None, None, 0, 0)
        return MaskSource(rows.reshape(-1), self.dropout.context.keys, self.dropout.number, self.dropout.dropped)

    def fill(self, b: tuple[Tensor, ...]) -> None:
        """Put each B where products take it."""
        for up, weight in zip(self.ups, b, strict=True):
            up[:, : self.rank] = weight

    def matrix(self, at: int) -> Tensor:
        """Return [W, 0, B] of a layer, which meets x and the h of the layers up to it."""
        return self.matrices[at] if not self.fewer else _widened(self.layers[at], self.kind, self.ups[at], at * self.padded)

    def frozen(self, at: int) -> Tensor:
        """Return the frozen weight of a layer as products take it."""
        return self.weights[at].to(self.kind) if not self.fewer else _widened(self.layers[at], self.kind)

    def block(self, at: int, rank: int | None = None) -> slice:
        """Return the columns of h that belong to layer `at`."""
        return slice(at * self.padded, at * self.padded + (rank or self.padded))


def _widened(layer: Any, kind: torch.dtype, up: Tensor | None = None, before: int = 0) -> Tensor:
    """Return a layer's weight that bitsandbytes holds in 4 or 8 bits, with `before` columns of zeros and `up` behind it, where given."""
    base = layer.base_layer
    held, rows, features = base.weight, base.out_features, base.in_features
    if (state := getattr(held, "quant_state", None)) is None:
        scales, codes, shared = held.SCB / 127.0, [], [1, 1]
    else:
        inner = [state.state2.code, state.state2.absmax, state.offset] if state.nested else []
        scales, codes, shared = state.absmax, [state.code, *inner], [state.blocksize, state.state2.blocksize if state.nested else 1]
    wide: Tensor = ops.widen(held.data, scales, codes, shared, up, rows, features, before, kind)
    return wide


class _Together(torch.autograd.Function):
    """The outputs of a group's layers. Of x and h nothing is kept twice, of masks nothing at all."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: FusedGroup, drawn: MaskSource, scale: float, *trained: Tensor) -> tuple[Tensor, ...]:
        count = len(group.layers)
        a, b = trained[:count], trained[count:]
        group.fill(b)
        flat = x.reshape(-1, group.features)
        h, wide = ops.project(flat, list(a), *drawn, scale, group.wide)
        ctx.save_for_backward(x, h)
        ctx.group, ctx.drawn, ctx.scale, ctx.a, ctx.b = group, drawn, scale, a, b
        outs = _products(group, flat, h, wide)
        return tuple(as_rows(out, x) for out in outs)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Any:
        x, h = ctx.saved_tensors
        group, count = ctx.group, len(outer)
        if group.comes_and_goes:
            group.fill(ctx.b)
        flat = x.reshape(-1, group.features)
        dys = [dy.reshape(-1, dy.shape[-1]) for dy in outer]
        dh, db, frozen = _joined_back(group, h, dys) if group.joined else _each_back(group, h, dys)
        parts = ops.gather(flat, dh, count, *ctx.drawn, ctx.scale)
        gathered = parts.sum(0) if len(parts) > 1 else parts[0]
        da = [gathered[group.block(at, group.rank)] for at in range(count)]
        dx = None
        if ctx.needs_input_grad[0]:
            dx = ops.spread(dh, list(ctx.a), *ctx.drawn, ctx.scale)
            for dy, weight in frozen:
                dx.addmm_(dy, weight)  # adds before it rounds
                del weight
            dx = dx.view(x.shape)
        return dx, None, None, None, *da, *db


def _products(group: FusedGroup, x: Tensor, h: Tensor, wide: Tensor) -> list[Tensor]:
    if group.joined:
        return list(torch.split(F.linear(wide, group.matrices[0], group.bias), group.sizes, dim=1))
    if group.wide:
        reach = [group.features + (at + 1) * group.padded for at in range(len(group.layers))]
        return [F.linear(wide[:, : reach[at]], group.matrix(at), layer.base_layer.bias) for at, layer in enumerate(group.layers)]
    outs = []
    for at, (layer, up) in enumerate(zip(group.layers, group.ups, strict=True)):
        bias = layer.base_layer.bias
        out = F.linear(h[:, group.block(at)], up, None if bias is None else bias.to(h.dtype))
        outs.append(out.addmm_(x, group.frozen(at).t()))  # adds before it rounds
    return outs


_Back = tuple[Tensor, list[Tensor], Iterable[tuple[Tensor, Tensor]]]  # dh without its scale, the gradient of each B, and dx's products


def _joined_back(group: FusedGroup, h: Tensor, dys: list[Tensor]) -> _Back:
    matrix, dy = group.matrices[0], torch.cat(dys, 1)
    dh = dy @ matrix[:, group.features :]
    every = (h.t() @ dy).float()
    columns = torch.split(every, group.sizes, dim=1)
    db = [part[group.block(at, group.rank)].t() for at, part in enumerate(columns)]
    return dh, db, [(dy, matrix[:, : group.features])]


def _each_back(group: FusedGroup, h: Tensor, dys: list[Tensor]) -> _Back:
    dh = torch.empty_like(h)
    db = []
    for at, (dy, up) in enumerate(zip(dys, group.ups, strict=True)):
        torch.mm(dy, up, out=dh[:, group.block(at)])
        db.append((h[:, group.block(at, group.rank)].t() @ dy).float().t())
    return dh, db, ((dy, group.frozen(at)) for at, dy in enumerate(dys))
