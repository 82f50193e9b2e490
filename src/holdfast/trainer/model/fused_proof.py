"""Prove, when a run starts, that fused LoRA layers, dropout included, and the fused loss compute what torch does. Moves no weight."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from holdfast.base.errors import error_message
from holdfast.trainer.common.oom import is_out_of_memory
from holdfast.trainer.model.head import OutputHead
from holdfast.trainer.model.kernels import ops
from holdfast.trainer.model.layers.dropout import StatelessDropout
from holdfast.trainer.model.layers.fused import FusedGroup, FusedLayers, MaskSource

_TOKENS = 331  # several blocks of each kernel, and one that is not full
_LABELS = 33  # rows of logits of the whole vocabulary
_SAME = {torch.float32: 1e-4, torch.bfloat16: 2e-2}  # of a tensor's norm: another order of additions, one rounding instead of three


def layers_differ(fused: FusedLayers) -> str:
    """Compare the fused LoRA kernels with torch in each kind of group; return why they cannot be used, empty where they agree."""
    if (most := max((group.rank for group in fused.groups), default=0)) > ops.MOST_RANK:
        return f"they take ranks up to {ops.MOST_RANK}, the adapter has {most}"
    kinds = {(group.features, *group.sizes, group.bias is None): group for group in fused.groups}
    try:
        for group in kinds.values():
            with fused.near(*group.layers):
                if told_apart := _differs(group):
                    return told_apart
        return ""
    except Exception as error:  # Triton is missing, or compiles on this machine and raises what it likes
        if is_out_of_memory(error):
            raise
        return error_message(error)


def loss_differs(head: OutputHead) -> str:
    """Compare the fused loss with torch: losses, hits, gradients; return why it cannot be used, empty where they agree or it is off."""
    layer: Any = head.layer
    if not head.fuses(kind := getattr(getattr(layer, "weight", None), "dtype", torch.float32)):
        return ""
    torch.manual_seed(0)
    hidden = torch.randn(_LABELS, layer.in_features, device=layer.weight.device).to(kind)
    labels = torch.randint(layer.out_features, (_LABELS,), device=hidden.device)
    with torch.no_grad():
        labels[::2] = head.logits(hidden).argmax(1)[::2]  # hits
    try:
        ours, own = (_losses(head, hidden, labels, fused) for fused in (True, False))
    except Exception as error:  # as above
        if is_out_of_memory(error):
            raise
        return error_message(error)
    finally:
        head.fused = True
    for name, one, other in zip(("the losses", "the hits", "the gradients"), ours, own, strict=True):
        if not (gap := float((one - other).norm() / other.norm())) <= _SAME[kind]:
            return f"{name} of the loss's kernel differ by {gap:.1e} of their norm"
    return ""


def _losses(head: OutputHead, hidden: Tensor, labels: Tensor, fused: bool) -> list[Tensor]:
    """Compute [losses, hits, gradient of the losses' weighted sum in the hidden states]."""
    head.fused = fused
    with torch.enable_grad():
        x = hidden.clone().requires_grad_()
        losses, right = head.losses(x, labels)
        weights = torch.linspace(0.5, 1.5, len(labels), device=labels.device)
        return [losses.detach(), right.float(), torch.autograd.grad((losses * weights).sum(), x)[0].float()]


def _differs(group: FusedGroup) -> str:
    torch.manual_seed(0)
    device, count = group.weights[0].device, len(group.layers)
    drawn = _draw_masks(group, device)
    if drawn.rows is not None and (wrong := _wrong_masks(group, drawn)):
        return f"{wrong} elements of a dropout mask are not those of the hash"
    given = [torch.randn(_TOKENS, group.features, device=device).to(group.kind)]
    given += [torch.randn(group.rank, group.features, device=device) / group.features**0.5 for _ in range(count)]
    given += [torch.randn(size, group.rank, device=device) / group.rank**0.5 for size in group.sizes]
    outer = [torch.randn(_TOKENS, size, device=device).to(group.kind) for size in group.sizes]
    for name, one, other in zip(
        _names(count), _compute(group, given, outer, drawn, True), _compute(group, given, outer, drawn, False), strict=True
    ):
        gap = float((one.float() - other.float()).norm() / other.float().norm().clamp_min(1e-30))
        if not gap <= _SAME[group.kind]:
            return f"{name} of a layer with {group.features} features differs by {gap:.1e} of its norm"
    return ""


def _names(count: int) -> list[str]:
    return [*["the output"] * count, "the gradient of the input", *["the gradient of A"] * count, *["the gradient of B"] * count]


def _draw_masks(group: FusedGroup, device: torch.device) -> MaskSource:
    """Draw dropout as in a step, for random row hashes; nothing where the adapter has no dropout."""
    if not isinstance(group.dropout, StatelessDropout) or not group.dropout.dropped:
        return MaskSource(None, None, 0, 0)
    rows = torch.randint(-(2**31), 2**31, (_TOKENS,), dtype=torch.int32).to(device)
    return MaskSource(rows, group.dropout.context.keys, group.dropout.number, group.dropout.dropped)


def _keep(group: FusedGroup, at: int, rows: Tensor) -> Tensor:
    layer = group.layers[at]
    mask: Tensor = layer.lora_dropout[next(iter(layer.lora_A))].keep(rows, group.features)
    return mask


def _wrong_masks(group: FusedGroup, drawn: MaskSource) -> int:
    """Count the elements in which a kernel's dropout masks differ from the hash's, seen through inputs of ones."""
    count, wrong = len(group.layers), 0
    assert drawn.rows is not None
    ones = [torch.ones(1, group.features, device=drawn.rows.device)] * count
    for at in range(count):
        dh = torch.zeros(_TOKENS, count * ops.GRAIN, dtype=group.kind, device=drawn.rows.device)
        dh[:, at * ops.GRAIN] = 1.0
        wrong += int((ops.spread(dh, ones, *drawn, 1.0).bool() != _keep(group, at, drawn.rows)).sum())
    return wrong


def _compute(group: FusedGroup, given: list[Tensor], outer: list[Tensor], drawn: MaskSource, fused: bool) -> list[Tensor]:
    """Compute the outputs, and the gradients in x, every A and every B, by the kernels or by torch."""
    count = len(group.layers)
    with torch.enable_grad():
        x, *trained = [tensor.clone().requires_grad_() for tensor in given]
        pairs = list(zip(trained[:count], trained[count:], strict=True))
        if fused:
            outs = list(group.computed(x, pairs, drawn))
        else:
            outs = [
                group.reference(at, x, *pair, _keep(group, at, drawn.rows) if drawn.rows is not None else None)
                for at, pair in enumerate(pairs)
            ]
        return [*(out.detach() for out in outs), *torch.autograd.grad(outs, [x, *trained], outer)]
