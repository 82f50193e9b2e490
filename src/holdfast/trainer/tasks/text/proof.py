"""Prove, when a run starts, that samples sharing a row do not see each other and that the lean output layer is the model's own.

What cannot be proven is not used: the run then pads, or lets the model compute its own logits. An event says so.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from holdfast.base.errors import error_message
from holdfast.base_model.folder import ModelFacts
from holdfast.config.settings import PartialSettings
from holdfast.trainer.common.oom import is_out_of_memory
from holdfast.trainer.model.fused_proof import layers_differ, loss_differs
from holdfast.trainer.model.layers.liger import Liger
from holdfast.trainer.model.unfit import refuse_odd_writing, refuse_unfit
from holdfast.trainer.tasks.text.packing import TextBatch, assemble
from holdfast.trainer.tasks.text.text_model import TextModel, inputs

Ids: TypeAlias = npt.NDArray[np.int32]

_LENGTH = 40
_ENDS = 40  # tokens of each end of a long sample whose logits are compared: all of them may be gigabytes, which no step takes
_LONGEST = 1056  # windows up to about a thousand tokens are crossed by the proof
_SAME = {torch.float32: 1e-3, torch.bfloat16: 6e-2, torch.float16: 1e-2}  # of the logits' norm: another order of additions
_UNMOVED = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}  # of the largest logit: the same additions
_SAME_GRADIENT = {
    torch.float32: 1e-2,
    torch.bfloat16: 0.3,
    torch.float16: 0.1,
}  # of a weight's gradient; a wrong one is off by about its norm
_HEARD = 1e-3  # of the largest gradient: those below it are mostly rounding
_TOGETHER = 0.1  # of the norm: layers that were compared one by one, put together; a wrong place moves it by all of it
_TIMED, _TIMES = (256, 4096), 3  # rows of the input and of the matrix


def differences(task: TextModel) -> tuple[PartialSettings, str]:
    """Prove layout, kernels and output layer; return the first settings to change, and why; none where all is proven. Moves no weight.

    Raises Refusal where the model cannot learn next tokens from text.
    """
    found = (differ(task) for differ in (fused_differ, kernels_differ, disproof))
    narrow = task.dtype != torch.float32 or task.frozen in ("auto", "half")
    try:
        with nullcontext() if task.liger is None else task.liger.off(), nullcontext() if task.fused is None else task.fused.off():
            refuse_unfit(task.base, partial(_own_logits, task), task.tokens.ids, task.dtype, narrow)
            with task.own_attention():
                refuse_odd_writing(task.base, task.tokens.ids, task.dtype)
        return next(((changes, reason) for changes, reason in found if changes), ({}, ""))
    except RuntimeError as error:
        return _wider(task, error)


def _wider(task: TextModel, error: RuntimeError) -> tuple[PartialSettings, str]:
    """Return what to widen to fp32, and why, where the model's own code fails with weights in 16 bits; else raise the error again.

    Some multiply with a layer's weight beside the layer, which widens none.
    """
    if is_out_of_memory(error) or task.frozen not in ("auto", "half"):
        raise error
    wide: PartialSettings = {"frozen": "fp32"} if task.dtype == torch.float32 else {"dtype": "fp32"}
    return wide, f"this model's own code does not compute with weights in 16 bits beside values in fp32 ({error_message(error)})"


def kernels_differ(task: TextModel) -> tuple[PartialSettings, str]:
    """Compare Liger's kernels with the model's own code; return the change to no Liger, and why, where loss or gradients differ."""
    if task.liger is None:
        return {}, ""
    reason = task.liger.refused
    if not reason:
        task.model.eval()
        sample = _two_samples(task)[0]
        with task.liger.off():
            own = _aside(_loss_and_gradients(task, sample))
        try:
            ours = _loss_and_gradients(task, sample)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            reason = error_message(error)
        else:
            gap = _apart(ours, own)
            reason = "" if gap <= _SAME[task.dtype] else f"loss and gradients differ by {gap:.1e} of their norm"
        task.model.train()
        Liger.use(None if reason else task.liger)
    return ({"liger": False}, f"Liger's kernels are left out: {reason}") if reason else ({}, "")


def fused_differ(task: TextModel) -> tuple[PartialSettings, str]:
    """Compare fused layers and loss with torch's operations, alone and in the model; return the change back, and why, or none."""
    if task.fused is None:
        return {}, ""
    reason = layers_differ(task.fused) or (loss_differs(task.losses.head) if task.losses.head else "")
    if not reason:
        task.model.eval()
        sample = _two_samples(task)[0]
        with nullcontext() if task.liger is None else task.liger.off():
            ours = _aside(_loss_and_gradients(task, sample))
            with task.fused.off():
                own = _loss_and_gradients(task, sample)
        task.model.train()
        gap = _apart(ours, own)
        reason = "" if gap <= _TOGETHER else f"loss and gradients differ by {gap:.1e} of their norm"
    return ({"fused": False}, f"the kernels of LoRA layers and loss are left out: {reason}") if reason else ({}, "")


def _loss_and_gradients(task: TextModel, ids: Ids) -> list[Tensor]:
    """Return loss and gradients of one sample, whose every token is learned; see `_gradients_of` for how long they hold."""
    with torch.enable_grad():
        wanted = torch.from_numpy(ids[_looked_at(ids)[:-1] + 1]).long().to(task.device)
        loss = torch.nn.functional.cross_entropy(_own_logits(task, ids)[:-1], wanted)
        return [loss.detach(), *_gradients_of(task, [lambda: loss])]


def _gradients_of(task: TextModel, losses: Iterable[Callable[[], Tensor]]) -> list[Tensor]:
    """Return the summed gradients of losses, of all that is trained, where a step accumulates them: they hold until the next call.

    A second set beside the step's own would be more than a step holds, and more than was planned.
    """
    weights = list(task.trained.values())
    if any(weight.grad is None for weight in weights):  # cut over ranks: there is room for them only inside a step
        return _summed(weights, losses)
    for weight in weights:
        assert weight.grad is not None
        weight.grad.zero_()
    for loss in losses:
        loss().backward(inputs=weights)  # type: ignore[no-untyped-call]
    return [weight.grad for weight in weights if weight.grad is not None]


def _summed(weights: list[Tensor], losses: Iterable[Callable[[], Tensor]]) -> list[Tensor]:
    total = [torch.zeros_like(weight) for weight in weights]
    for loss in losses:
        for one, gradient in zip(total, torch.autograd.grad(loss(), weights, materialize_grads=True), strict=True):
            one += gradient
    return total


def _aside(tensors: list[Tensor]) -> list[Tensor]:
    """Copy tensors into main memory."""
    return [one.to("cpu", copy=True) for one in tensors]


def _apart(ours: list[Tensor], own: list[Tensor]) -> float:
    """Return the norm of all differences as a share of the norm of what is wanted, tensor by tensor; NaN for a NaN. `ours` is used up."""
    gaps = [_gap_norm(one, other) for one, other in zip(ours, own, strict=True)]
    return math.hypot(*gaps) / (math.hypot(*(float(other.float().norm()) for other in own)) or math.nan)


def _gap_norm(one: Tensor, other: Tensor) -> float:
    """Return the norm of the difference, computed where `one` came to: a card holds the largest gradient once more, not twice."""
    return float(one.to(other.device).float().sub_(other).norm())


def disproof(task: TextModel) -> tuple[PartialSettings, str]:
    """Test the layout; return the setting to change and why, nothing where all was proven."""
    task.model.eval()
    with torch.no_grad():
        first, second = _two_samples(task)
        alone = _own_logits(task, second)
        changes: PartialSettings = {}
        reason = _head_differs(task, second, alone) if task.losses.head else None
        if reason:
            changes = {"own_head": True}
        elif task.packing and (reason := _leaks(task, first, second, alone)):
            changes = {"varlen": False} if task.kernel else {"packing": False}
            reason += ": each attends by itself" if task.kernel else ": they are padded in groups of like length"
    on_card = task.kernel is not None or task.device.type == "cuda"
    if not changes and task.packing and on_card and (reason := _backward_differs(task, first, second)):
        changes = {"varlen": False} if task.kernel else {"packing": False}
    task.model.train()
    return changes, reason or ""


def _two_samples(task: TextModel) -> tuple[Ids, Ids]:
    """Take two stretches of the data's own tokens, long enough to reach beyond a sliding window."""
    config = task.base.config.get_text_config()
    window = getattr(config, "sliding_window", None) or 0
    longest = int(np.diff(task.tokens.starts).max())
    length = min(window + 16, longest, _LONGEST) if 0 < window < longest else _LENGTH
    stream = np.resize(task.tokens.ids[: 2 * length], 2 * length)
    return stream[:length], stream[length:]


def own_logits(task: TextModel) -> Tensor:
    """Compute logits of a stretch of the data's own tokens by the model as transformers runs it."""
    return _own_logits(task, _two_samples(task)[0])


def _own_logits(task: TextModel, ids: Ids) -> Tensor:
    """Compute logits of one sample, where they are looked at, by the model as transformers runs it: [tokens, vocabulary]."""
    with task.own_attention():
        return _logits_at(task, _looked_at(ids), len(ids), input_ids=torch.from_numpy(ids).long()[None].to(task.device))


def _looked_at(ids: Ids) -> npt.NDArray[np.int64]:
    """Return the places of a sample whose logits are compared: of a long one both ends, before and beyond a sliding window."""
    places = np.arange(len(ids))
    return places if len(ids) <= 2 * _ENDS else np.concatenate([places[:_ENDS], places[-_ENDS:]])


def _logits_at(task: TextModel, places: npt.NDArray[np.int64], length: int, **given: Any) -> Tensor:
    """Compute logits at places of one row of so many tokens: [places, vocabulary]. The output layer is asked for no others."""
    chosen, layer = torch.from_numpy(places).to(task.device), task.base.get_output_embeddings()

    def choose(_layer: Any, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        there = args and isinstance(args[0], Tensor) and args[0].dim() > 1 and args[0].shape[-2] == length
        return (args[0].index_select(-2, chosen), *args[1:]) if there else None

    hook = layer.register_forward_pre_hook(choose) if layer is not None and len(places) < length else None
    try:
        logits: Tensor = task.base(**given, use_cache=False).logits[0]
    finally:
        if hook is not None:
            hook.remove()
    return (logits if len(logits) == len(places) else logits[chosen]).float()


def _head_differs(task: TextModel, ids: Ids, own: Tensor) -> str | None:
    assert task.losses.head is not None
    with task.own_attention():
        hidden = task.losses.hidden(batch_of(task, [ids], packed=False))
        taken, size = getattr(task.losses.head.layer, "in_features", None), hidden.shape[-1]
        if taken not in (None, size):
            return f"the output layer takes {taken} numbers and not the {size} of a hidden state: the model computes its logits itself"
        places = _looked_at(ids)
        hidden = hidden if len(places) == len(ids) else hidden[torch.from_numpy(places).to(task.device)]
        ours = task.losses.head.logits(hidden)
        wanted = torch.from_numpy(ids[places[:-1] + 1]).long().to(task.device)
        loss, _ = task.losses.head.loss_sum(hidden[:-1], wanted)
    reference = torch.nn.functional.cross_entropy(own[:-1], wanted, reduction="sum")
    if (gap := _gap(ours, own)) > _UNMOVED[task.dtype] or abs(float(loss - reference)) > _SAME[task.dtype] * abs(float(reference)):
        return f"the output layer is no plain product (logits differ by {gap:.1e} of the largest): the model computes them all itself"
    return None


def _leaks(task: TextModel, first: Ids, second: Ids, alone: Tensor) -> str | None:
    limit = getattr(task.base.config.get_text_config(), "attention_chunk_size", None)
    if limit:
        return f"attention in chunks of {limit} tokens"
    before = task.context.windows
    try:
        once, again = (_packed_logits(task, one, second) for one in (first, first[::-1].copy()))
    except (RuntimeError, ValueError, TypeError, NotImplementedError, AttributeError, KeyError, IndexError) as error:
        if is_out_of_memory(error):
            raise
        return f"samples cannot share a row ({error_message(error)})"
    if untold := _untold_window(task, len(second), (task.context.windows - before) // 2):
        return untold
    moved, gap = _gap(again, once), float((once - alone).norm() / alone.norm().clamp_min(1e-30))
    if not (moved <= _UNMOVED[task.dtype] and gap <= _SAME[task.dtype]):
        return (
            f"samples that share a row see each other (another first sample moves the second's logits by {moved:.1e} of the largest, "
            f"sharing by {gap:.1e} of their norm)"
        )
    return None


def _untold_window(task: TextModel, length: int, layers: int) -> str | None:
    """Say so where rows are longer than a sliding window that a proof of `length` tokens does not cross, and which the model keeps to
    itself: packed attention knows only the windows that it is asked for. layers: how many asked for one."""
    config = task.base.config.get_text_config()
    window = getattr(config, "sliding_window", None) or 0
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"]
    if not max(length, 1) <= window < int(np.diff(task.tokens.starts).max()) or layers >= kinds.count("sliding_attention"):
        return None
    return f"a sliding window of {window:,} tokens, for which its layers do not ask attention"


def _backward_differs(task: TextModel, first: Ids, second: Ids) -> str | None:
    """Compare the gradients of two samples in one row with those of each alone under the model's own attention; say what differs.

    Each weight by itself: a gradient that attention's backward pass spoils may be small beside all others.
    """
    with torch.enable_grad():
        ours = _aside(_gradients_of(task, _losses(task, [batch_of(task, [first, second], packed=True)])))
        with task.own_attention():
            own = _gradients_of(task, _losses(task, [batch_of(task, [ids], packed=False) for ids in (first, second)]))
    norms = [float(one.norm()) for one in own]
    heard = [at for at, norm in enumerate(norms) if norm > _HEARD * max(norms)]  # half of a fresh adapter has no gradient at all
    if not heard:
        return None
    gaps = {at: _gap_norm(ours[at], own[at]) / norms[at] for at in heard}
    worst = max(gaps, key=lambda at: gaps[at] if gaps[at] == gaps[at] else math.inf)
    if gaps[worst] <= _SAME_GRADIENT[task.dtype]:
        return None
    return f"the gradients of samples that share a row are wrong (that of {list(task.trained)[worst]} by {gaps[worst]:.1e} of its norm)"


def _losses(task: TextModel, batches: list[TextBatch]) -> list[Callable[[], Tensor]]:
    return [lambda batch=batch: task.loss_sum(batch, 1)[0] for batch in batches]  # type: ignore[misc]


def slower_in_halves(model: ModelFacts) -> tuple[PartialSettings, str]:
    """Time a matmul as large as the model's largest; return (a change to fp32, why) where bf16 is no faster on the CPU, else none."""
    rows, columns = max(model.matrices().values(), key=math.prod)
    x, matrix = torch.ones(_TIMED[0], columns), torch.ones(min(rows, _TIMED[1]), columns)
    wide, narrow = (_seconds(x.to(kind), matrix.to(kind)) for kind in (torch.float32, torch.bfloat16))
    if narrow < wide:
        return {}, ""
    reason = f"products in bf16 take {narrow / wide:.1f} times as long as in fp32 here ({1e3 * narrow:.1f} and {1e3 * wide:.1f} ms)"
    return {"dtype": "fp32"}, reason


def _seconds(x: Tensor, matrix: Tensor) -> float:
    """Return the shortest time of a few products."""
    times = []
    for _ in range(_TIMES + 1):
        began = time.perf_counter()
        torch.nn.functional.linear(x, matrix)
        times.append(time.perf_counter() - began)
    return min(times[1:])


def _packed_logits(task: TextModel, first: Ids, second: Ids) -> Tensor:
    batch = batch_of(task, [first, second], packed=True)
    task.enter(batch, 1)
    return _logits_at(task, len(first) + _looked_at(second), len(first) + len(second), **inputs(batch))


def batch_of(task: TextModel, samples: list[Ids], packed: bool) -> TextBatch:
    """Make a micro-batch of these samples, `packed` into one row or padded, with all tokens learned."""
    rows = [(ids, np.ones(len(ids), np.uint8)) for ids in samples]
    return assemble(rows, tuple(range(len(rows))), ("",) * len(rows), task.tokens.pad, packed, task.device)


def _gap(one: Tensor, other: Tensor) -> float:
    """Return the largest difference as a share of the largest value; infinite where either is not finite."""
    gap = float((one - other).abs().max() / other.abs().max().clamp_min(1e-30))
    return gap if gap == gap else float("inf")
